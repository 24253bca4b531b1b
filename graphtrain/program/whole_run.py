"""How often the nodes of a graph run from its start to its end, counted ahead.

The compiled graph is run with nodes that do nothing but count: triggers, windows, guards and epochs are those of a run,
since the same code evaluates them. A visit takes about 1 us.

Rounds that repeat are multiplied. Every answer is logged: the nodes that run, the signs of comparisons, what is due.
Where two rounds log the same and change every counter by the same amounts, all counters are linear in the number of
rounds, and each answer stays as it is on an interval of them. So the rounds up to the first that differs are found by
bisection: a million batches take as long as a few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from graphtrain.data.length import EpochLength
from graphtrain.data.shares import round_size
from graphtrain.errors import UsageError
from graphtrain.graph.renaming import paths_of
from graphtrain.guards.closures import compile_guard, never
from graphtrain.guards.evaluate import FUNCTIONS, OPERATORS
from graphtrain.guards.syntax import Expression
from graphtrain.kind import derived_clock
from graphtrain.kind.batch_limit import BatchLimit, combined_length
from graphtrain.kind.fields import ROUND, EpochFields
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.names import suggestion
from graphtrain.plan.counted import Counted, data_read_by, epoch_fields_of
from graphtrain.plan.plan import Exit, Plan, PlanNode
from graphtrain.plan.scope import ExpressionTarget, ResourceTarget, Scope, leaves
from graphtrain.program.bind import BoundGraph, BoundNode, Program
from graphtrain.program.loop import Transition
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.table import Act, Compiler, Report, nothing
from graphtrain.program.triggers import Clock, Every

LengthOf = Callable[[str], EpochLength | Mapping[str, EpochLength | None] | None]
"""The length of an epoch of the data that a resource is; None where it has none. KeyError: nobody says.

Of a mapping of loaders, that of each.
"""

# Visits after which it is given up, which take 0.3 s: a number, and no clock, so that a resume gets the same answer.
MOST_VISITS = 50_000
_ENDLESS = 2**60


class EndlessError(UsageError):
    """Nothing that is counted ends the graph."""


class TooLongError(UsageError):
    """There are too many visits, and they do not repeat."""


@final
class WholeRun:
    """What one whole run of a graph comes to: no data is fetched, and nothing is trained.

    Arguments:
        length_of: the length of data, by the name of the resource.
        window_ranks: the ranks with which the run begins: a window has the micro-batches of all of them. Steps are the
            same for any number of ranks that goes through these windows. Default: 1.
        ranks: those that fetch batches, each its own: what is asked after each of them, such as how often a node runs,
            is asked after a round. Default: 1.

    >>> from graphtrain import Graph
    >>> plan = Plan(Graph.load("fit").set("accumulate", every=4).set("finish", after="3 epochs"))
    >>> WholeRun(plan, lambda name: EpochLength(1_000_003)).visits("step")
    750003
    """

    def __init__(self, plan: Plan, length_of: LengthOf, window_ranks: int = 1, ranks: int = 1) -> None:
        self._plan, self._length_of = plan, length_of
        self._window_ranks, self._ranks = window_ranks, ranks
        self._totals: dict[tuple[str, str], int] = {}
        self._asked: list[str] = []

    def visits(self, path: str) -> int:
        """How often the node at a path runs in the whole run; in a body, in all runs of that.

        Raises:
            UsageError: there is no such node; time or metrics alone end the run, or data has no length.
        """
        if path not in self._plan.by_path:
            raise UsageError(f"there is no node `{path}`", suggestion(path, paths_of(self._plan.graph)))
        total, scope = 1, self._plan.main
        for name in path.split("/"):
            planned = self._plan.by_path[f"{scope.path}{name}"]
            counted = self._counted(scope, planned.path, "runs")
            if counted.is_uncertain(planned):
                raise UsageError(
                    f"how often `{planned.path}` runs is not known ahead: time or a metric makes it due "
                    f"({' or '.join((str(planned.trigger), *planned.also_due))})",
                    f'count steps or epochs, as in {planned.path}.every = "1 epochs"',
                )
            total *= self._run(scope, counted).by_path[planned.path].fields["runs"]
            if planned.body is not None:
                scope = planned.body
        return total

    def batches_per_epoch(self, planned: PlanNode) -> int:
        """The batches in an epoch of the data that a node fetches.

        Raises:
            UsageError: they are not known ahead.
        """
        return self._length(planned).batches

    def total(self, planned: PlanNode, field_name: str) -> int:
        """What a field holds when the graph that its node is in has run once.

        Raises:
            UsageError: as of `visits`; or that depends on this number itself.
        """
        text = f"{planned.path}.{field_name}"
        if text in self._asked:
            raise UsageError(
                f"`{text}` at the end of the run depends on when a part of the run is over, which depends on it",
                "count what decides the length of the run by epochs or steps",
            )
        key = planned.path, field_name
        if key not in self._totals:
            self._asked.append(text)
            try:
                counted = self._counted(planned.scope, *key)
                program = self._run(planned.scope, counted)
            finally:
                self._asked.pop()
            value = getattr(program.by_path[planned.path].instance, field_name)
            if not counted.is_known(*key) or not value:
                raise UsageError(f"what `{text}` comes to is not known ahead", "count by epochs or steps instead")
            self._totals[key] = int(value)
        return self._totals[key]

    def _counted(self, scope: Scope, path: str, field_name: str) -> Counted:
        plan = self._plan if scope is self._plan.main else Plan(scope.graph, scope)
        return Counted(plan, path, field_name, self._knows_samples)

    def _knows_samples(self, planned: PlanNode) -> bool:
        length = self._length(planned)
        return length.last is not None and (length.samples is not None or self._ranks == 1)

    def _run(self, scope: Scope, counted: Counted) -> Program:
        """The program of a graph, run to its end."""
        plan = counted.plan
        ranks = _Ranks(self._ranks) if self._ranks > 1 else None
        program = Program(plan, {**dict.fromkeys(_optional(plan), object()), "ranks": ranks}, self, counted.left_out)
        program.window_ranks = self._window_ranks
        for bound in program.nodes:
            epoch = epoch_fields_of(bound.planned)
            if epoch is not None and not bound.bypassed:
                bound.hold(_fetching(bound, epoch, self._length(bound.planned)))
        run = _Run(program, counted)
        try:
            run.to_end()
        except EndlessError:
            inner = plan.scopes[run.scope_path()]
            unknown = sorted(counted.unknown_at_end(inner))
            decides = f": it ends only as {', '.join(unknown)} decide" if unknown else ""
            ending = (node.path for node in plan.nodes_in(inner) if node.kind and node.kind.trigger == "after")
            never = next((f"{path}.after" for path in ending), "")
            raise UsageError(
                f"nothing that is counted ends the graph `{inner.graph.name}`{decides}",
                f'give {never} an amount, as in {never} = "10 epochs"' if never else "",
            ) from None
        return program

    # ---- the length of data

    def _length(self, planned: PlanNode) -> EpochLength:
        if (batches := planned.parameters.get("batches_per_epoch")) is not None:
            return EpochLength(batches)
        names = data_read_by(planned)
        if not names:
            raise UsageError(
                f"the data of `{planned.path}` is made in the graph, so how many batches it has is not known ahead",
                "count by what does not depend on it",
            )
        try:
            length = self._length_of(names[0])
        except KeyError:
            raise UsageError(
                f"how many batches `{names[0]}` has is not known, which `{planned.path}` fetches",
                f"supply it: run.steps(..., {names[0]}=...)",
            ) from None
        named = (planned.parameters.get(name) for name in ("limit", "overfit"))
        amounts = [amount for amount in named if amount is not None]
        limit = BatchLimit(min(amounts, default=None))
        if isinstance(length, Mapping):
            length, limit = _of_loaders(length, limit, planned), BatchLimit(None)
        if length is None:
            raise UsageError(
                f"`{names[0]}` has no length, so how many batches `{planned.path}` will fetch is not known ahead",
                "give the data a `__len__`, or compute the number where it is needed from what you know of the data",
            )
        return _limited(length, limit)


def _optional(plan: Plan) -> Iterator[str]:
    """The resources without which some node does nothing."""
    for planned in plan.nodes:
        slots = (
            planned.body.graph.optional if planned.body is not None else planned.kind.optional if planned.kind else ()
        )
        for slot in slots:
            for leaf in leaves(planned.scope.read_by(planned.node, slot)):
                if isinstance(leaf, ResourceTarget):
                    yield leaf.name


def _limited(length: EpochLength, limit: BatchLimit) -> EpochLength:
    most = limit.of(length.batches)
    return EpochLength(most, length.samples, length.samples) if most is not None and most < length.batches else length


def _of_loaders(lengths: Mapping[str, EpochLength | None], limit: BatchLimit, planned: PlanNode) -> EpochLength | None:
    """The length of an epoch of several loaders, of which each or all of them are limited."""
    known = [length for length in lengths.values() if length is not None]
    if len(known) < len(lengths):
        return None
    combine = planned.parameters.get("combine") or ("cycle" if planned.scope.steps else "in_turn")
    if combine == "in_turn":
        return EpochLength(sum(_limited(length, limit).batches for length in known))
    batches = combined_length([length.batches for length in known], combine)
    return _limited(EpochLength(batches), limit) if batches is not None else None


# ---- nodes that count


def _fetching(bound: BoundNode, epoch: EpochFields, length: EpochLength) -> Any:
    """An object in the place of that of a node which fetches batches, with the fields that follow from counting."""

    def epochs(self: Any) -> int | Fraction:
        fields = vars(self)
        number: int = fields[epoch.epoch]
        if not fields[epoch.opened]:
            return number
        if fields[epoch.last]:
            return number + (not fields[epoch.empty])
        return Fraction(number * length.batches + fields[epoch.epoch_batches], length.batches)

    computed = {
        epoch.epochs: derived_clock.of(counter=epoch.epoch_batches, restarts=epoch.epoch, reach="reach")(epochs),
        epoch.length: property(lambda self: length.batches),
        epoch.batch_index: property(lambda self: max(vars(self)[epoch.epoch_batches] - 1, 0)),
        "reach": lambda self, amount: math.ceil((amount - vars(self)[epoch.epoch]) * length.batches),
    }
    counting = type("Counting", (), computed)()
    bound.kind.reset(counting, whole=True)
    counting.fetched_from = length
    return counting


class _Counting(Compiler):
    """The transitions of a program whose nodes do nothing but count, and what is logged on the way."""

    def __init__(self, program: Program, counted: Counted, log: list[Any], ended: Act) -> None:
        self._counted, self._log = counted, log
        self._operators = {symbol: _logged(symbol, compute, log) for symbol, compute in OPERATORS.items()}
        self._functions = {name: _logged(name, compute, log) for name, compute in FUNCTIONS.items()}
        super().__init__(program, ended, Stopwatch(lambda time: None))

    def _setup(self, bound: BoundNode) -> Act:
        return nothing

    def _evaluated(self, bound: BoundNode, act: Act) -> Act:
        return act

    def _at_end(self, bound: BoundNode, method: Act) -> Act:
        return nothing

    def _timed(self, bound: BoundNode, transition: Transition) -> Transition:
        return transition

    def _act(self, bound: BoundNode) -> Act:
        epoch = epoch_fields_of(bound.planned)
        if epoch is not None:
            return self._fetch(bound, epoch)
        fields, declared = bound.fields, bound.kind.fields.values()
        added = [(each.name, each.adds) for each in declared if each.adds is not None]
        copied = [(each.last, each.name) for each in declared if each.last is not None]
        if bound.kind.reports_backward:
            self._reports[bound.index] = Report(bound.path, ran_backward=True)

        def count() -> None:
            for name, amount in added:
                fields[name] += amount
            for last, name in copied:
                fields[last] = fields[name]

        return count if added or copied else nothing

    def _fetch(self, bound: BoundNode, epoch: EpochFields) -> Act:
        """A batch of an epoch whose length is known; of several ranks, a round of them."""
        fields, log, length = bound.fields, self._log, bound.instance.fetched_from
        windows = None
        if self._rounds is not None and ROUND in bound.kind.fields:
            windows = self._rounds.windows(bound, self._window_counters, self._next_window)
            world_size = self._rounds.agreement.world_size
        before_last, last = length.samples or 0, length.last or 0

        def fetch() -> None:
            if fields[epoch.last] or not fields[epoch.opened]:
                fields[epoch.epoch] += fields[epoch.opened]
                fields[epoch.opened], fields[epoch.epoch_batches] = True, 0
                fields[epoch.last] = fields[epoch.exhausted] = fields[epoch.empty] = False
            if not length.batches:
                fields[epoch.last] = fields[epoch.exhausted] = fields[epoch.empty] = True
                return
            size = 1
            if windows is not None:
                size = round_size(fields[epoch.epoch_batches], length.batches, world_size, windows())
                fields[ROUND] = size
            fields[epoch.epoch_batches] += size
            fields[epoch.batches] += size
            is_last = fields[epoch.epoch_batches] >= length.batches
            fields[epoch.samples] += before_last * (size - 1) + (last if is_last else before_last)
            if is_last:
                fields[epoch.last] = True
            log.append((size, is_last))

        return fetch

    # ---- what is known, and what is logged

    def _edge_guard(self, scope: BoundGraph, way: Exit) -> Act:
        """A way around which nothing happens that decides anything is not taken."""
        return never if way in self._counted.detours else super()._edge_guard(scope, way)

    def compiled(self, scope: BoundGraph, expression: Expression) -> Act:
        certain = self._counted.certain(scope.names, expression)
        return compile_guard(certain, self.names(scope), self._operators, self._functions)

    def expression(self, target: ExpressionTarget) -> Act:
        if unknown := [*self._counted.unknown_of(target)]:
            raise UsageError(
                f"`{target.name}` depends on `{unknown[0]}`, which is not known ahead", "compute the number in `setup`"
            )
        return super().expression(target)

    def clocks(self, bound: BoundNode, trigger: Trigger) -> list[tuple[Clock, Term]]:
        if trigger is bound.planned.trigger and bound.kind.trigger == "after":
            for owner, counted, term in self._program.terms(bound, trigger):
                if not owner.kind.fields[counted].in_digest:
                    raise UsageError(
                        f'`{bound.path}.after` = "{term}" ends by time, and how many steps that takes is not known '
                        "ahead",
                        f'count epochs or steps, as in {bound.path}.after = "10 epochs"',
                    )
        terms = self._program.terms(bound, trigger)
        return [
            (self.clock(owner, counted), term)
            for owner, counted, term in terms
            if self._counted.is_known(owner.path, counted)
        ]

    def due(self, bound: BoundNode) -> Act:
        due, log = super().due(bound), self._log

        def logged() -> Any:
            log.append(answer := bool(due()))
            return answer

        return logged

    def field_getter(self, bound: BoundNode, name: str) -> Act:
        read = super().field_getter(bound, name)
        counter = bound.kind.counter(name)
        if counter is None or counter.full != name:
            return read
        log = self._log

        def logged() -> Any:
            log.append(answer := read())
            return answer

        return logged


def _logged(name: str, compute: Callable[..., Any], log: list[Any]) -> Callable[..., Any]:
    """An operation that is linear as long as what it logs stays as it is."""
    if name in ("+", "-"):
        return compute
    if name in ("*", "/"):

        def scale(left: Any, right: Any) -> Any:
            log.append(right)
            return compute(left, right)

        return scale
    if name in ("==", "!=", "<", "<=", ">", ">="):

        def compare(left: Any, right: Any) -> Any:
            try:
                log.append((left > right) - (left < right))
            except TypeError:  # a number and a text
                log.append(left == right)
            return compute(left, right)

        return compare

    def operate(*operands: Any) -> Any:
        log.append(operands)
        return compute(*operands)

    return operate


# ---- the run, in which what repeats is multiplied

_Change = list[Any]


@dataclass(frozen=True)
class _Round:
    """A way from a position back to it: what is logged on it, and by how much it changes everything."""

    head: int
    log: list[Any]
    change: _Change


@dataclass(frozen=True)
class _Skipped:
    """Rounds that were not gone through."""

    one: _Round
    times: int


class _Run:
    """One run of a program of nodes that count."""

    def __init__(self, program: Program, counted: Counted) -> None:
        self._program = program
        self._log: list[Any] = []
        self._has_ended = False
        self._visits = 0
        compiler = _Counting(program, counted, self._log, self._end)
        self._transitions = compiler.table.transitions
        acting = [bound for bound in program.nodes if not bound.bypassed]
        self._fields = [
            (bound.fields, name)
            for bound in acting
            for name, declared in bound.kind.fields.items()
            if declared.stored and (name == ROUND or counted.is_known(bound.path, name))
        ]
        self._triggers = [(bound.trigger, bound.fields) for bound in acting if bound.trigger is not None]
        self._fired = [
            (fields, unit, amount)
            for trigger, fields in self._triggers
            if isinstance(trigger, Every)
            for unit, amount in trigger.amounts()
        ]
        compiler.enter(program.main, reset=True)
        self._position = program.main.nodes[program.graph.start].index

    def _end(self) -> None:
        self._has_ended = True

    def scope_path(self) -> str:
        """The path of the graph that the run is in."""
        return self._program.nodes[self._position].scope.prefix

    def to_end(self) -> None:
        """Run to the end.

        Raises:
            EndlessError: nothing that is counted ends it.
            UsageError: it is too long.
        """
        self._go_on(frozenset())

    def _step(self) -> None:
        self._visits += 1
        if self._visits > MOST_VISITS:
            raise TooLongError(
                f"the graph `{self._program.graph.name}` is too irregular to be counted ahead: it was followed for "
                f"{MOST_VISITS:,} nodes",
                "let its guards and expressions compare counts with numbers, or compute the number of steps in `setup`",
            )
        self._position = self._transitions[self._position]()
        self._log.append(self._position)

    def _go_on(self, heads: frozenset[int]) -> None:
        """Run until one of some positions is next, or to the end; on the way, rounds that repeat are multiplied."""
        met: dict[int, int] = {}
        while not self._has_ended:
            self._step()
            if self._position in heads:
                return
            position = self._position
            met[position] = times = met.get(position, 0) + 1
            # What does not repeat is tried less and less often.
            if times >= 2 and not times & (times - 1):
                if self._multiply(heads):
                    met[position] = 1
                if self._position in heads:
                    return

    def _multiply(self, heads: frozenset[int]) -> bool:
        """Go round from here; as long as further rounds are like that one, skip them; False where none was."""
        head, start, before = self._position, len(self._log), self._state()
        self._go_on(heads | {head})
        change = self._change(before, self._state())
        if self._has_ended or self._position != head or change is None:
            return False
        one = _Round(head, self._log[start:], change)
        if not self._follow(one):
            return False
        base, low, high = self._state(), -1, 1
        while self._is_alike_after(base, one, high):
            low, high = high, 16 * high
            if high > _ENDLESS:
                raise EndlessError("endless")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_alike_after(base, one, middle) else (low, middle)
        self._put(base, change, low + 1)
        if low >= 0:
            self._log.append(_Skipped(one, low + 1))
        return low >= 0

    def _follow(self, one: _Round) -> bool:
        """Go round as another round did; False as soon as something differs."""
        start, before = len(self._log), self._state()
        while (done := len(self._log) - start) < len(one.log):
            entry = one.log[done]
            if isinstance(entry, _Skipped):
                base = self._state()
                # What is so in the first of these rounds and in the last is so in all of them.
                if not all(self._is_alike_after(base, entry.one, times) for times in {0, entry.times - 1}):
                    self._put(base, entry.one.change, 0)
                    return False
                self._put(base, entry.one.change, entry.times)
                self._log.append(entry)
                continue
            self._step()
            if self._has_ended or self._log[start + done :] != one.log[done : len(self._log) - start]:
                return False
        return self._change(before, self._state()) == one.change

    def _is_alike_after(self, base: list[Any], one: _Round, times: int) -> bool:
        """True if the round is the same that comes after so many; the position and the log stay."""
        start = len(self._log)
        self._put(base, one.change, times)
        try:
            return self._follow(one)
        except TooLongError:
            raise
        except (ArithmeticError, ValueError):  # no run comes there
            return False
        finally:
            self._position, self._has_ended = one.head, False
            del self._log[start:]

    # ---- the state, as numbers

    def _state(self) -> list[Any]:
        state = [fields[name] for fields, name in self._fields]
        for fields, unit, _ in self._fired:
            numerator, denominator, count = fields["fired"].get(unit, (0, 1, None))
            state += (numerator if denominator == 1 else Fraction(numerator, denominator), count)
        return state

    def _change(self, before: list[Any], after: list[Any]) -> _Change | None:
        """By how much each number has changed; None if something else has, or a trigger is not as far as it was."""
        change: _Change = []
        for then, now in zip(before, after, strict=True):
            if then is now or then == now:
                change.append(0)
            elif type(then) in (int, Fraction) and type(now) in (int, Fraction):
                change.append(now - then)
            else:
                return None
        fired = change[len(self._fields) :: 2]
        return None if any(each % amount for each, (*_, amount) in zip(fired, self._fired, strict=True)) else change

    def _put(self, base: list[Any], change: _Change, times: int) -> None:
        """Let everything be as it is when it has changed so often."""
        state = [value + times * each if each else value for value, each in zip(base, change, strict=True)]
        for (fields, name), value in zip(self._fields, state, strict=False):
            fields[name] = value
        fired = iter(state[len(self._fields) :])
        for fields, unit, _ in self._fired:
            last, count = next(fired), next(fired)
            fields["fired"] = {**fields["fired"], unit: [last.numerator, last.denominator, count]}
        for trigger, _ in self._triggers:
            trigger.start()


class _Ranks:
    """Several ranks that all do the same."""

    rank = 0

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def watch_choices(self, position: int, leave: Transition) -> Transition:
        return leave

    def before_batch(self) -> None:
        """Nothing is agreed on."""

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.world_size
