"""One graph run on its counters alone: no data, no tensors, and stretches that repeat are multiplied.

Where a run comes by an edge again and every counter has only been added to since, the same follows again, as long as
the answers of all guards on the way stay as they are. How long that is can be computed (`plan.linear`), so that a
million batches take as long as a few. Nodes that change nothing that decides are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, final

from graphtrain.errors import UsageError
from graphtrain.guards.syntax import Expression, FieldOf, walk
from graphtrain.kind.fields import ROUND, EpochFields, Field
from graphtrain.kind.trigger import AT_END, RUN, Term, Trigger, exactly, next_multiple
from graphtrain.plan.linear import UNKNOWN, Coefficients, Exact, Linear, Notes, evaluate_linear, shift
from graphtrain.plan.plan import Exit, Plan, PlanNode
from graphtrain.plan.scope import ExpressionTarget, ResourceTarget, Scope, leaves

# Visits after which it is given up: guards that follow no line have to be gone through, at 25 us a visit. These take
# 0.2 s; a number, and no clock, so that a resume on a busier machine gets the same answer.
MOST_VISITS = 8_000

# Stretches that are looked at again at every edge.
_SHORT = 32
_GRADIENTS = ("backward", "zero_grad")
_ROUND = "round"  # among the values: the batches that all ranks fetched last


class EpochLength(NamedTuple):
    """What one epoch of data holds.

    Attributes:
        batches: how many.
        samples: in each of them; None where that is not known.
        last: samples in the last one.
    """

    batches: int
    samples: int | None = None
    last: int | None = None


class EndlessError(UsageError):
    """Nothing that is counted ends the graph."""


@dataclass
class Counted:
    """What one run of a graph comes to.

    Attributes:
        visits: how often the node has run that was asked for; `UNKNOWN` where something else than counts decides.
        fields: path and field -> the value at the end.
        gradients: optimizer -> backward passes since its gradients were cleared, and whether they were.
    """

    visits: Any = UNKNOWN
    fields: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, tuple[int, bool]] = field(default_factory=dict)


class Surroundings(NamedTuple):
    """What counting a graph asks of whoever knows more than that graph.

    Attributes:
        length_of: the length of the data that a node reads.
        count_body: counts one run of the body of a node.
        whole: how many steps the run has, for amounts that are a part of it.
        window_ranks: a window has the micro-batches of so many ranks. Default: 1.
        ranks: batches are fetched by so many ranks at once, in rounds. Default: 1.
    """

    length_of: Callable[[PlanNode], EpochLength]
    count_body: Callable[[PlanNode], Counted]
    whole: Callable[[PlanNode, Term], int]
    window_ranks: int = 1
    ranks: int = 1


@dataclass
class _Mark:
    """When an edge was taken: how many stretches were noted before, and the counters."""

    number: int
    values: dict[str, Any]


@final
class Counting:
    """One run of one graph.

    Arguments:
        target: the name of the node whose visits are counted; None counts what the graph leaves behind.
        wanted: fields that are asked for at the end, as ``"step.steps"``.
    """

    def __init__(
        self,
        plan: Plan,
        scope: Scope,
        surroundings: Surroundings,
        target: str | None = None,
        wanted: frozenset[str] = frozenset(),
    ) -> None:
        self._plan, self._scope, self._around = plan, scope, surroundings
        self._nodes = {planned.node.name: planned for planned in plan.nodes_in(scope)}
        self._target, self._wanted = target, wanted
        self._idle = {name for name, planned in self._nodes.items() if _is_idle(planned)}
        self._counters = {
            name: declared
            for name, planned in self._nodes.items()
            if planned.kind is not None
            for declared in planned.kind.fields.values()
            if declared.counts is not None and name not in self._idle
        }
        self._values: dict[str, Any] = {}
        self._copies: dict[str, Coefficients] = {}  # what was set to the value of a clock -> how that changes
        self._set_at: dict[str, int] = {}  # what was set, not added to -> in which stretch
        self._notes = Notes()
        self._stretches: list[Notes] = []
        self._tried_at = 0
        self._marks: dict[tuple[str, int], _Mark] = {}
        self._alike: dict[tuple[Any, ...], _Mark] = {}
        self.unknown: dict[str, None] = {}
        self._exits: dict[str, list[tuple[int, Exit]]] = {}
        self._needed: set[str] = set()
        self._simplify()
        self._begin()

    # ---- what decides

    def _simplify(self) -> None:
        """Leave out the ways around which nothing happens that decides anything."""
        everything = {
            name: list(enumerate(planned.exits if name not in self._idle else planned.exits[-1:]))
            for name, planned in self._nodes.items()
        }
        left_out = {
            (name, number): detour
            for name, ways in everything.items()
            for number, way in ways
            if len(ways) > 1 and (detour := self._detour(name, way))
        }
        while True:
            self._exits = {
                name: [(number, way) for number, way in ways if (name, number) not in left_out]
                for name, ways in everything.items()
            }
            self._needed = self._read_by_guards()
            needed = {text.rpartition(".")[0].partition("/")[0] for text in self._needed}
            back = [key for key, detour in left_out.items() if needed & set(detour)]
            if not back:
                break
            for key in back:
                del left_out[key]
        self._passed = {
            name
            for name in self._nodes
            if name in self._idle or (self._is_inert(name) and name not in needed and len(self._exits[name]) == 1)
        }

    def _detour(self, source: str, way: Exit) -> list[str]:
        """The nodes on a way that comes back to where it began, if none of them can decide anything; else none."""
        names: list[str] = []
        target = way.target
        if way.guard is None:
            return []
        while target is not None and target.node.name != source:
            name = target.node.name
            if name in names or len(target.exits) != 1 or not self._is_inert(name):
                return []
            names.append(name)
            target = target.exits[0].target
        return names if target is not None else []

    def _is_inert(self, name: str) -> bool:
        """True if a visit changes nothing but fields of the node, none of which is asked for."""
        planned = self._nodes[name]
        if name == self._target or any(text.startswith((f"{name}.", f"{name}/")) for text in self._wanted):
            return False
        if name in self._counters or _epoch_fields(planned) is not None:
            return False
        inside = [other for other in self._plan.nodes if other.path.startswith(f"{planned.path}/")]
        return not any(action.effect in _GRADIENTS for other in (planned, *inside) for action in other.actions)

    def _read_by_guards(self) -> set[str]:
        """The fields, from here, that guards read where a run still comes by, and what those follow from."""
        reached, waiting = set(), [self._scope.graph.start]
        reads: set[str] = set(self._wanted)
        while waiting:
            name = waiting.pop()
            if name in reached:
                continue
            reached.add(name)
            for _, way in self._exits[name]:
                if way.guard is not None:
                    reads |= self._fields_in(way.guard)
                if way.target is not None:
                    waiting.append(way.target.node.name)
            declared = self._counters.get(name)
            if declared is not None and declared.target is not None:
                reads |= self._fields_of(name, declared.target)
            if name == self._target or not self._is_inert(name):
                reads |= self._fields_of(name, "due")
        followed: set[str] = set()
        while further := {text.rpartition(".")[0] for text in reads} - followed:
            followed |= further
            for name in further:
                if "/" not in name:
                    reads |= self._fields_of(name, "due")
        return reads

    def _fields_in(self, expression: Expression) -> set[str]:
        return {
            text
            for part in walk(expression)
            if isinstance(part, FieldOf)
            for text in self._fields_of(part.node, part.field)
        }

    def _fields_of(self, name: str, field_name: str) -> set[str]:
        if "/" in name:
            return {f"{name}.{field_name}"}
        planned = self._nodes[name]
        if field_name in planned.expressions:
            return self._fields_in(planned.expressions[field_name].expression)
        assert planned.kind is not None, "checked before"
        if field_name == "due":
            if planned.trigger is None or name in self._idle:
                return set()
            fields = {f"{name}.runs"} if planned.trigger.once else {f"{name}.fired"}
            for _, text, _ in self._terms(planned):
                fields |= {text}
            return fields | (self._fields_in(self._scope.ending) if planned.trigger.at_end else set())
        if field_name in planned.kind.parameters or not self._is_counted(name, field_name):
            return set()
        return {f"{name}.{field_name}"}

    def _is_counted(self, name: str, field_name: str) -> bool:
        """True for a field whose value follows from visits alone."""
        planned = self._nodes[name]
        assert planned.kind is not None, "checked before"
        declared = planned.kind.fields.get(field_name)
        if declared is None:
            return False
        if field_name == "runs" or declared.adds is not None or planned.kind.counter(field_name) is not None:
            return True
        counter = self._counters.get(name)
        epoch = _epoch_fields(planned)
        return (counter is not None and field_name == counter.last) or (epoch is not None and field_name in epoch)

    def _terms(self, planned: PlanNode) -> Iterator[tuple[Trigger, str, Term]]:
        """For each amount of the triggers of a node: the field, from here, that counts it."""
        for trigger in planned.triggers:
            for owner, field_name, term in self._plan.terms(self._scope, trigger):
                yield trigger, f"{owner.path.removeprefix(self._scope.path)}.{field_name}", term

    # ---- the values

    def _begin(self) -> None:
        for name, planned in self._nodes.items():
            kind = planned.kind
            assert kind is not None, "checked before"
            self._values[f"{name}.runs"] = 0
            for declared in kind.fields.values():
                if declared.stored and declared.name != "fired" and self._is_counted(name, declared.name):
                    self._values[f"{name}.{declared.name}"] = declared.default
            epoch = _epoch_fields(planned)
            if epoch is not None:
                self._values |= {f"{name}.{text}": kind.fields[text].default for text in epoch.stored}
                self._values[f"{name}.{epoch.opened}"] = False
        for text in self._needed:
            path, _, field_name = text.rpartition(".")
            if "/" in path:
                inner = self._plan.by_path[f"{self._scope.path}{path}"]
                self._values[text] = _first(inner, field_name)
        for planned in self._nodes.values():
            if planned.kind is not None and planned.kind.trigger == "every" and planned.trigger is not None:
                for text, _ in self._fired(planned):
                    self._values[text] = 0

    def _fired(self, planned: PlanNode) -> Iterator[tuple[str, tuple[str, Term]]]:
        """For each clock that a node with `every` has: where the last firing is kept; and what counts it."""
        assert planned.trigger is not None
        for owner, field_name, term in self._plan.terms(self._scope, planned.trigger):
            text = f"{owner.path.removeprefix(self._scope.path)}.{field_name}"
            yield f"{planned.node.name}.fired {term.counted}", (text, term)
            if self._restarts(text) is not None:
                yield f"{planned.node.name}.turn {term.counted}", (text, term)

    def _restarts(self, text: str) -> str | None:
        """The field that changes where a counter starts again at 0, of a counter that does."""
        path, _, field_name = text.rpartition(".")
        if "/" in path:
            return f"{path.partition('/')[0]}.runs"
        kind = self._nodes[path].kind
        declared = kind.fields.get(field_name) if kind is not None else None
        return f"{path}.{declared.restarts}" if declared is not None and declared.restarts is not None else None

    def _set(self, text: str, value: Any, coefficients: Coefficients = ()) -> None:
        """Give a field a value that does not depend on the one it had."""
        self._values[text] = value
        self._set_at[text] = len(self._stretches)
        if coefficients:
            self._copies[text] = coefficients
        else:
            self._copies.pop(text, None)

    def _read(self, expression: Expression) -> Linear:
        if not isinstance(expression, FieldOf):
            return self._give_up(getattr(expression, "name", ""))
        return self._field(expression.node, expression.field)

    def _give_up(self, name: str) -> Linear:
        self.unknown[name] = None
        return Linear(UNKNOWN)

    def _field(self, name: str, field_name: str) -> Linear:
        text = f"{name}.{field_name}"
        if "/" in name:
            value = self._values.get(text, UNKNOWN)
            return self._give_up(text) if value is UNKNOWN else Linear(value)
        planned = self._nodes[name]
        kind = planned.kind
        assert kind is not None, "checked before"
        if field_name == "due":
            return Linear(self._due(planned))
        if field_name in planned.expressions:
            return self._evaluated(planned.expressions[field_name])
        if field_name in kind.parameters:
            return Linear(planned.parameters[field_name])
        counter = kind.counter(field_name)
        if counter is not None and counter.full == field_name and name in self._counters:
            return self._full(name, counter)
        epoch = _epoch_fields(planned)
        if epoch is not None and field_name in epoch.computed:
            return self._of_epoch(planned, epoch, field_name)
        value = self._values.get(text, UNKNOWN)
        if value is UNKNOWN:
            if ROUND in kind.fields:
                raise UsageError(
                    f"how many splits a batch has is not known ahead, and `{planned.path}.{field_name}` decides how "
                    "often nodes run",
                    "compute the number in `setup`",
                )
            return self._give_up(text)
        is_number = isinstance(value, int | Fraction) and not isinstance(value, bool)
        return Linear(value, ((text, 1),) if is_number else ())

    def _evaluated(self, target: ExpressionTarget) -> Linear:
        """The value of an expression, as its parameter has it."""
        value = evaluate_linear(target.expression, self._read, self._notes)
        if value.value is UNKNOWN or target.parameter is None:
            return value
        try:
            return value._replace(value=target.parameter.evaluated(value.value))
        except (ValueError, OverflowError):
            return self._give_up(target.name)  # the run would stop there

    def _full(self, name: str, declared: Field) -> Linear:
        window = self._values[f"{name}.{declared.window}"]
        if window is UNKNOWN:
            return self._give_up(f"{name}.{declared.full}")
        size = Linear(window, ((f"{name}.{declared.window}", 1),))
        count = Linear(self._values[f"{name}.{declared.name}"], ((f"{name}.{declared.name}", 1),))
        answer = window > 0 and count.value >= window
        if window > 0:
            self._notes.compared(count, size, ">=", answer)
        return Linear(answer)

    def _of_epoch(self, planned: PlanNode, epoch: EpochFields, field_name: str) -> Linear:
        """A field that is computed from the position in the data."""
        name = planned.node.name
        number, batches = self._values[f"{name}.{epoch.epoch}"], self._values[f"{name}.{epoch.epoch_batches}"]
        length = self._around.length_of(planned).batches
        if field_name == epoch.length:
            return Linear(length)
        if field_name == epoch.batch_index:
            return Linear(max(batches - 1, 0), ((f"{name}.{epoch.epoch_batches}", 1),) if batches else ())
        whole = (f"{name}.{epoch.epoch}", 1)
        if not self._values[f"{name}.{epoch.opened}"]:
            return Linear(number, (whole,))
        if self._values[f"{name}.{epoch.last}"]:
            return Linear(number + (not self._values[f"{name}.{epoch.empty}"]), (whole,))
        part = (f"{name}.{epoch.epoch_batches}", Fraction(1, length))
        return Linear(number + Fraction(batches, length), tuple(sorted((whole, part))))

    # ---- triggers

    def _due(self, planned: PlanNode) -> Any:
        """True, False, or `UNKNOWN` where the wall clock or a metric decides."""
        name, trigger = planned.node.name, planned.trigger
        if name in self._idle:
            return False
        if trigger is None:
            return True
        start = self._reached(planned, planned.start) if planned.start is not None else True
        if start is False:
            return False
        due = self._is_due_by(planned, trigger)
        if due is not True and any(self._field(name, text).value is not False for text in planned.also_due):
            due = UNKNOWN
        if due is UNKNOWN or (due and start is UNKNOWN):
            self._set(f"{name}.runs", UNKNOWN)
            return UNKNOWN
        return due

    def _is_due_by(self, planned: PlanNode, trigger: Trigger) -> Any:
        name = planned.node.name
        assert planned.kind is not None, "checked before"
        if planned.kind.trigger == "after":
            return self._reached(planned, trigger)
        if trigger.once:
            runs = self._field(name, "runs")
            if runs.value is UNKNOWN:
                return UNKNOWN
            self._notes.compared(runs, Linear(0), "==", not runs.value)
            if not runs.value:
                return True
        answer: Any = False
        for text, (clock, term) in self._fired(planned):
            if ".fired " not in text:
                continue
            if term.unit == AT_END and not self._is_ending():
                continue
            now, amount = self._clock(clock), self._amount(planned, term)
            if now.value is UNKNOWN:
                answer = UNKNOWN
            elif self._has_passed(name, text, clock, now, amount, term):
                return True
        return answer

    def _is_ending(self) -> bool:
        """Whether the end of the graph is asked for; as at an edge, not where that is not known."""
        return evaluate_linear(self._scope.ending, self._read, self._notes).value is True

    def _has_passed(self, name: str, text: str, clock: str, now: Linear, amount: Fraction, term: Term) -> bool:
        """Whether a multiple of an amount was passed since the node fired last."""
        fired = Linear(self._values[text], ((text, 1),))
        restarts = self._restarts(clock)
        if restarts is not None:
            turn_text = f"{name}.turn {term.counted}"
            turn, turn_then = self._values[restarts], self._values[turn_text]
            is_same = turn == turn_then
            self._notes.compared(Linear(turn, ((restarts, 1),)), Linear(turn_then, ((turn_text, 1),)), "==", is_same)
            if not is_same:
                fired = Linear(0)
        self._notes.depends_on(fired, amount)
        due_at = Linear(next_multiple(exactly(fired.value), amount), fired.coefficients)
        answer = bool(now.value >= due_at.value)
        self._notes.compared(now, due_at, ">=", answer)
        return answer

    def _reached(self, planned: PlanNode, trigger: Trigger) -> Any:
        """Whether a clock has reached an amount."""
        answer: Any = False
        assert planned.kind is not None, "checked before"
        for owner, field_name, term in self._plan.terms(self._scope, trigger):
            if owner.kind is not None and not owner.kind.fields[field_name].in_digest and trigger is planned.trigger:
                raise UsageError(
                    f'`{planned.path}.after` = "{term}" ends by time, and how many steps that takes is not known ahead',
                    f'count epochs or steps, as in {planned.path}.after = "10 epochs"',
                )
            now = self._clock(f"{owner.path.removeprefix(self._scope.path)}.{field_name}")
            amount = self._amount(planned, term)
            if now.value is UNKNOWN:
                answer = UNKNOWN
                continue
            is_reached = bool(now.value >= amount)
            self._notes.compared(now, Linear(amount), ">=", is_reached)
            if is_reached:
                return True
        return answer

    def _amount(self, planned: PlanNode, term: Term) -> Fraction:
        return term.amount * self._around.whole(planned, term) if term.unit == RUN else term.base.amount

    def _clock(self, text: str) -> Linear:
        path, _, field_name = text.rpartition(".")
        value = self._field(path, field_name)
        return value if value.value is UNKNOWN else value._replace(value=exactly(value.value))

    # ---- visits

    def run(self) -> Counted:
        """Run the graph to its end.

        Raises:
            EndlessError: nothing that is counted ends it.
            UsageError: time ends it, or data has no length.
        """
        node: PlanNode | None = self._nodes[self._scope.graph.start]
        visits = 0
        while node is not None:
            visits += 1
            if visits > MOST_VISITS:
                raise UsageError(
                    f"the graph `{self._scope.graph.name}` is too irregular to be counted ahead: it was followed for "
                    f"{MOST_VISITS:,} nodes",
                    "let its guards and expressions compare counts with numbers, or compute the number of steps in "
                    "`setup`",
                )
            name = node.node.name
            if name not in self._passed:
                self._visit(node)
            node = self._left(name)
        return self._counted()

    def _counted(self) -> Counted:
        fields = {}
        for text in self._wanted:
            path, _, field_name = text.rpartition(".")
            fields[text] = self._field(path, field_name).value
        gradients = {
            text.removeprefix("backward "): (value, self._values[text.replace("backward ", "cleared ", 1)])
            for text, value in self._values.items()
            if text.startswith("backward ")
        }
        return Counted(self._values[f"{self._target}.runs"] if self._target is not None else 0, fields, gradients)

    def _visit(self, planned: PlanNode) -> None:
        name, kind = planned.node.name, planned.kind
        assert kind is not None, "checked before"
        if kind.trigger == "every" and planned.trigger is not None and self._due(planned) is not True:
            return
        if planned.body is not None:
            self._run_body(planned)
        epoch = _epoch_fields(planned)
        if epoch is not None:
            self._fetch(planned, epoch)
        for action in planned.actions:
            if action.effect in _GRADIENTS:
                for optimizer in action.optimizers:
                    passes = self._values.get(_ROUND, self._around.ranks) if action.effect == "backward" else 0
                    self._act(optimizer, passes, action.effect == "zero_grad")
        for declared in kind.fields.values():
            text = f"{name}.{declared.name}"
            if declared.adds is not None and self._values.get(text, UNKNOWN) is not UNKNOWN:
                self._values[text] += declared.adds
        counter = self._counters.get(name)
        if counter is not None and counter.last is not None:
            count = f"{name}.{counter.name}"
            self._set(f"{name}.{counter.last}", self._values[count], ((count, 1),))
        if kind.trigger == "every" and planned.trigger is not None:
            self._fire(planned)
        if self._values[f"{name}.runs"] is not UNKNOWN:
            self._values[f"{name}.runs"] += 1

    def _fire(self, planned: PlanNode) -> None:
        for text, (clock, _) in self._fired(planned):
            if ".fired " in text:
                now = self._clock(clock)
                if now.value is not UNKNOWN:
                    self._set(text, now.value, now.coefficients)
            elif (restarts := self._restarts(clock)) is not None:
                self._set(text, self._values[restarts], ((restarts, 1),))

    def _fetch(self, planned: PlanNode, epoch: EpochFields) -> None:
        """A batch of an epoch, whose length is known."""
        name, values, length = planned.node.name, self._values, self._around.length_of(planned)
        if values[f"{name}.{epoch.last}"] or not values[f"{name}.{epoch.opened}"]:
            if values[f"{name}.{epoch.opened}"]:
                values[f"{name}.{epoch.epoch}"] += 1
            for text, value in ((epoch.opened, True), (epoch.epoch_batches, 0)):
                self._set(f"{name}.{text}", value)
            for text in (epoch.last, epoch.exhausted, epoch.empty):
                self._set(f"{name}.{text}", False)
        if not length.batches:
            for text in (epoch.last, epoch.exhausted, epoch.empty):
                self._set(f"{name}.{text}", True)
            return
        fetched = f"{name}.{epoch.epoch_batches}"
        size = self._round_size(Linear(values[fetched], ((fetched, 1),)), length.batches)
        values[f"{name}.{epoch.epoch_batches}"] += size
        values[f"{name}.{epoch.batches}"] += size
        is_last = values[fetched] >= length.batches
        self._notes.compared(Linear(values[fetched], ((fetched, 1),)), Linear(length.batches), ">=", is_last)
        before_last, last = length.samples, length.last if is_last else length.samples
        if last is None or (before_last is None and size > 1):
            self._set(f"{name}.{epoch.samples}", UNKNOWN)
        elif values[f"{name}.{epoch.samples}"] is not UNKNOWN:
            values[f"{name}.{epoch.samples}"] += (before_last or 0) * (size - 1) + last
        if is_last:
            self._set(f"{name}.{epoch.last}", True)

    def _round_size(self, fetched: Linear, length: int) -> int:
        """The batches that ranks fetch at once: one each, or as many as the epoch and the open windows still have."""
        size = self._around.ranks
        if size == 1:
            return 1
        rests = [(fetched, length)]
        for name, declared in self._counters.items():
            if declared.window is None or declared.target is None:
                continue
            count = f"{name}.{declared.name}"
            window = self._values[f"{name}.{declared.window}"] if self._values[count] else self._next_window(name)
            if window is not UNKNOWN and window > self._values[count]:
                rests.append((Linear(self._values[count], ((count, 1),)), window))
        for taken, end in rests:
            is_short = end - taken.value < self._around.ranks
            self._notes.compared(taken, Linear(end - self._around.ranks), ">", is_short)
            if is_short:
                self._notes.depends_on(taken)
                size = min(size, end - taken.value)
        self._set(_ROUND, size)
        return size

    def _next_window(self, name: str) -> Any:
        """How many micro-batches of all ranks the window takes that opens next."""
        target = self._counters[name].target
        assert target is not None, "asked before"
        size = self._field(name, target)
        self._notes.depends_on(size)
        return size.value * self._around.window_ranks if size.value is not UNKNOWN else UNKNOWN

    def _run_body(self, planned: PlanNode) -> None:
        """A body as a whole: what it leaves in fields that are read here, and in gradients."""
        name = planned.node.name
        read = [text for text in self._needed if text.startswith(f"{name}/")]
        inside = [other for other in self._plan.nodes if other.path.startswith(f"{planned.path}/")]
        acts = any(action.effect in _GRADIENTS for other in inside for action in other.actions)
        if not (read or (acts and self._counters)):
            return
        try:
            counted = self._around.count_body(planned)
        except UsageError:
            for text in read:
                self._set(text, UNKNOWN)
            return
        for text in read:
            self._set(text, counted.fields.get(text.removeprefix(f"{name}/"), UNKNOWN))
        for optimizer, (backward, was_cleared) in counted.gradients.items():
            self._act(optimizer, backward, was_cleared)

    def _act(self, optimizer: str, backward: int, is_cleared: bool) -> None:
        """What a visit does to the gradients of an optimizer: clears them, and runs backward so often after that."""
        values, text = self._values, f"backward {optimizer}"
        if is_cleared:
            self._set(text, 0)
            self._set(f"cleared {optimizer}", True)
        values[text] = values.get(text, 0) + backward
        values.setdefault(f"cleared {optimizer}", False)
        for name, declared in self._counters.items():
            if optimizer not in self._nodes[name].optimizers:
                continue
            count = f"{name}.{declared.name}"
            if is_cleared:
                self._set(count, 0)
            if backward and declared.window is not None and declared.target is not None:
                number = Linear(values[count], ((count, 1),))
                self._notes.compared(number, Linear(0), "==", not values[count])
                if not values[count]:
                    self._set(f"{name}.{declared.window}", self._next_window(name))
            values[count] += backward

    # ---- edges, and what repeats

    def _left(self, name: str) -> PlanNode | None:
        """Where the run goes from a node: a guard of which the answer is not known counts as not taken."""
        ways = self._exits[name]
        for number, way in ways:
            if way.guard is None or evaluate_linear(way.guard, self._read, self._notes).value is True:
                if len(ways) > 1:
                    self._pass(name, number)
                return way.target
        raise AssertionError("the last edge has no guard")

    def _pass(self, name: str, number: int) -> None:
        """Note that an edge is taken; if what has happened since it was taken last happens again, multiply it."""
        self._stretches.append(self._notes)
        self._notes = Notes()
        edge = (name, number)
        if (before := self._marks.get(edge)) is not None:
            self._repeat(before)
        alike = (edge, *(self._relative(text) for text in sorted(self._set_at)))
        if (before := self._alike.get(alike)) is not None:
            self._repeat(before)
        self._marks[edge] = self._alike[alike] = _Mark(len(self._stretches), dict(self._values))

    def _relative(self, text: str) -> Any:
        """What was set, not added to; where it was set to a clock, how long ago that is."""
        value, coefficients = self._values[text], self._copies.get(text)
        if coefficients is None or value is UNKNOWN:
            return value
        return value - sum(factor * self._values[counter] for counter, factor in coefficients)

    def _repeat(self, before: _Mark) -> None:
        """Multiply what has happened since, if nothing speaks against it.

        A long stretch that could not be multiplied is not tried again at every edge, to go through it each time.
        """
        length = len(self._stretches) - before.number
        if length > _SHORT and len(self._stretches) - self._tried_at < length // 2:
            return
        changes: dict[str, Exact] = {}
        for text, value in self._values.items():
            then = before.values.get(text, value)
            if value is then or value == then:
                continue
            if not all(isinstance(each, int | Fraction) and not isinstance(each, bool) for each in (value, then)):
                return
            changes[text] = value - then
        for text, change in changes.items():
            if self._set_at.get(text, -1) < before.number:
                continue
            coefficients = self._copies.get(text)
            if coefficients is None or shift(coefficients, changes) != change:
                return
        notes = Notes()
        self._tried_at = len(self._stretches) if length > _SHORT else self._tried_at
        for stretch in self._stretches[before.number :]:
            notes.join(stretch)
        times = notes.repeats(changes)
        if times == float("inf"):
            raise EndlessError(f"nothing that is counted ends the graph `{self._scope.graph.name}`")
        if times < 2:
            return
        last = len(self._stretches)
        self._stretches.append(notes.after(changes, int(times)))
        for text, number in self._set_at.items():
            if number >= before.number:
                self._set_at[text] = last
        for text, change in changes.items():
            self._values[text] += int(times) * change


def _is_idle(planned: PlanNode) -> bool:
    return planned.kind is None or planned.kind.is_idle(planned.parameters, planned.expressions)


def _epoch_fields(planned: PlanNode) -> EpochFields | None:
    """What the fields of a node that fetches batches are called."""
    return planned.kind.epoch_fields if planned.kind is not None else None


def _first(planned: PlanNode, field_name: str) -> Any:
    """The value of a field of a node in a body before that has run."""
    assert planned.kind is not None, "checked before"
    if field_name in planned.kind.parameters:
        return UNKNOWN if field_name in planned.expressions else planned.parameters[field_name]
    declared = planned.kind.fields.get(field_name)
    if field_name == "due" or declared is None:
        return UNKNOWN
    if declared.stored:
        return declared.default
    value = getattr(planned.kind.new_instance(), field_name, UNKNOWN)
    return value if isinstance(value, int | Fraction) else UNKNOWN


def data_read_by(planned: PlanNode) -> list[str]:
    """The resources with the batches that a node fetches."""
    targets = [target for read, target in planned.setup_reads if read.is_batches]
    return [leaf.name for target in targets for leaf in leaves(target) if isinstance(leaf, ResourceTarget)]
