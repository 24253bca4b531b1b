"""The transition table: one closure per position, which runs the node, counts the run, and returns the next position.

Everything a transition needs is bound here, once: slots by index, guards as closures, edges as numbers. The transition
of a node without work costs 0.15 us.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphtrain.errors import GuardError, UsageError
from graphtrain.guards.closures import compile_guard, constant, never
from graphtrain.guards.syntax import Expression, Name, walk
from graphtrain.kind import FunctionRecord, Read, WrittenBatches
from graphtrain.kind.declaration import FROM
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.plan.plan import Exit
from graphtrain.plan.scope import (
    ExpressionTarget,
    FieldTarget,
    ResourceTarget,
    SlotTarget,
    Target,
    leaves,
    outputs_of,
)
from graphtrain.program.acts import (
    Act,
    Report,
    both,
    choosing,
    nothing,
    storing,
    storing_reported,
    straight,
    then,
    triggered,
    two_ways,
    yes,
)
from graphtrain.program.bind import BoundGraph, BoundNode, Program
from graphtrain.program.cells import Cells
from graphtrain.program.expressions import evaluated
from graphtrain.program.gradient_windows import GradientWindows
from graphtrain.program.history import History
from graphtrain.program.loop import Transition
from graphtrain.program.resources import StepCall
from graphtrain.program.rounds import Rounds
from graphtrain.program.step_requests import StepRequests
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.triggers import After, Clock, Due, Every, after, any_of

Amount = tuple[str, Term, BoundNode, str]
"""An amount with what it is called in a message, ``"validate.every"``; and the node and the field that count it."""


@dataclass
class TransitionTable:
    """What the loop runs.

    Attributes:
        transitions: position -> run the node, return the next position.
        exits: position -> choose the exit edge, once the node has run.
        setups: position -> call the node's `setup` (nothing for most).
        at_end: called when the run has ended: what nodes of the outermost graph do then.
        extra_inputs: path -> what the user's functions called there read beside the model and the batch.
    """

    transitions: list[Transition] = field(default_factory=list)
    exits: list[Transition] = field(default_factory=list)
    setups: list[Act] = field(default_factory=list)
    at_end: list[Act] = field(default_factory=list)
    extra_inputs: dict[str, list[tuple[Read, Target]]] = field(default_factory=dict)


class Compiler:
    """Makes the table of a program.

    Arguments:
        ended: called when the outermost graph ends.
        watch: times the transitions.
    """

    def __init__(self, program: Program, ended: Act, watch: Stopwatch) -> None:
        self._program = program
        self._ended = ended
        self._watch = watch
        self._slots = program.slots
        self.cells = Cells(program, self.due, self.expression)
        agreement = program.resources.get("ranks")
        self._rounds = Rounds(program, agreement) if agreement is not None else None
        if self._rounds is not None:
            program.absent += self._rounds.undivided()
        self.windows = GradientWindows(program, self.cells, self._rounds)
        self._step_requests = StepRequests(program, agreement)
        # What the engine itself provides where a node is set up: name -> the value for a node.
        self._provided: dict[str, Callable[[BoundNode], Any]] = {
            "asks": self._step_requests.of,
            "current_loader": self._current_loader,
            "graph_trains": lambda bound: bound.scope.names.steps,
            "history": lambda bound: History(bound, program, program.resources["checkpoints"]),
            "metric_prefix": lambda bound: bound.metric_prefix,
            "step_names": self._step_names,
            "training_precision": lambda bound: program.training_precision,
        }
        if self._rounds is not None:
            rounds, windows = self._rounds, self.windows
            self._provided["windows"] = lambda bound: rounds.windows(bound, windows.counters, windows.next_size)
        # Most graphs have none: nothing is asked when they are entered.
        self._fractions: dict[BoundGraph, list[Amount]] = {}
        for bound in program.nodes:
            if amounts := [amount for amount in self._amounts(bound) if amount[1].base.amount.denominator != 1]:
                self._fractions.setdefault(bound.scope, []).extend(amounts)
        self.table = TransitionTable(extra_inputs=self.cells.extra_inputs)
        for bound in program.nodes:
            bound.trigger = self._trigger(bound)
        self._restarting = self._triggers_by_body()
        self.table.setups = [self._setup(bound) for bound in program.nodes]
        self.table.exits = [self._exit(bound) for bound in program.nodes]
        main = [bound for bound in program.main.nodes.values() if bound.kind.acts_at_end and not bound.bypassed]
        self.table.at_end = [self._at_end(bound, bound.instance.at_end) for bound in self._last_ones_last(main)]
        self.table.transitions = [self._timed(bound, self._transition(bound)) for bound in program.nodes]

    def _last_ones_last(self, acting: Iterable[BoundNode]) -> list[BoundNode]:
        """The nodes that do something at the end of their graph, those that end it last: they see what others did."""
        return sorted(acting, key=lambda bound: (None in self._program.targets(bound), bound.path))

    def _at_end(self, bound: BoundNode, method: Act) -> Act:
        """What a node does at the end of its graph."""
        return self._evaluated(bound, self._call(method, bound)) if bound.kind.reads_at_end else method

    # ---- entering graphs

    def enter(self, scope: BoundGraph, *, reset: bool, ready: Collection[BoundNode] = ()) -> None:
        """Set the nodes of a graph up, with fresh progress if `reset`, otherwise with the progress that they have.

        Those that are `ready` are set up already. The order is that of names: where a node stands in a file makes no
        difference, not even to the random numbers that a `setup` draws.
        """
        for bound in scope.nodes.values():
            if reset:
                bound.kind.reset(bound.instance)
        self.windows.enter(scope)
        for _, bound in sorted(scope.nodes.items()):
            if not bound.bypassed and bound not in ready:
                self.table.setups[bound.index]()
        if self._rounds is not None:
            self._rounds.rewired(set(ready) & set(scope.nodes.values()), self.windows.counters, self.windows.next_size)
        for bound in scope.nodes.values():
            if bound.trigger is not None:
                bound.trigger.start()
        if reset:
            for trigger, unit in self._restarting.get(scope, ()):
                trigger.restart(unit)
            self._forget(path for bound in scope.nodes.values() for path in bound.planned.returned.values())
            self._forget(f"{scope.prefix}{name}" for name in self._optional_outputs(scope))
        self.refuse_fractions(self._fractions.get(scope, ()))
        self._step_requests.enter(scope)

    def _optional_outputs(self, scope: BoundGraph) -> set[str]:
        """What may be absent when a graph ends, and then is what an earlier run of it has left otherwise."""
        return {*outputs_of(scope.graph)} - {*outputs_of(scope.graph, optional=False)} if scope.outer else set()

    def _forget(self, paths: Iterable[str]) -> None:
        """Let slots of step functions be as they were before anything was written."""
        for path in paths:
            self._slots[self._program.slot_index(path)] = None

    def _setup(self, bound: BoundNode) -> Act:
        if bound.kind.setup_reads is None or bound.bypassed:
            return nothing
        getters = [self._setup_getter(bound, read, target) for read, target in bound.planned.setup_reads]
        setup = bound.instance.setup
        return lambda: setup(*(get() for get in getters))

    def _setup_getter(self, bound: BoundNode, read: Read, target: Target) -> Act:
        """A call that returns what a node is set up with; data that nodes write is looked up when it is opened."""
        if read.name in self._provided:
            value = self._provided[read.name](bound)
            return lambda: value
        get = self.cells.of(bound, read, target).read
        if not (read.takes_written and isinstance(target, SlotTarget)):
            return get
        data = WrittenBatches(get)
        return lambda: data

    def _step_names(self, bound: BoundNode) -> Mapping[str, str]:
        """What the step functions that a node calls are called by whoever wrote them, by its name for them."""
        names = {}
        for read, target in bound.planned.reads:
            call = self._program.resources.get(target.name) if isinstance(target, ResourceTarget) else None
            if read.is_step_function and call is not None:
                assert isinstance(target, ResourceTarget), "looked up above"
                names[read.name] = call.name if isinstance(call, StepCall) else target.name
        return names

    def _current_loader(self, bound: BoundNode) -> Act | None:
        """A call that returns which of several loaders batches are of, as step functions are told of their `loader`."""
        target = self._program.step_input(bound, Read("loader"))
        return (
            self.cells.field(self._program.by_path[target.node], target.field).read
            if isinstance(target, FieldTarget)
            else None
        )

    # ---- triggers

    def clock(self, bound: BoundNode, field_name: str) -> Clock:
        """The clock that a field of a node is."""
        return Clock(bound.instance, field_name, bound.kind.fields[field_name].restarts)

    def clocks(self, bound: BoundNode, trigger: Trigger) -> list[tuple[Clock, Term]]:
        """For each amount of a trigger of a node: the clock that counts its unit, and the amount."""
        return [(self.clock(owner, counted), term) for owner, counted, term in self._program.terms(bound, trigger)]

    def _triggers_by_body(self) -> dict[BoundGraph, list[tuple[Every, str]]]:
        """For each body: the triggers of graphs around it, with a unit, whose counter begins again when it does."""
        restarting: dict[BoundGraph, list[tuple[Every, str]]] = {}
        for bound in self._program.nodes:
            if not isinstance(bound.trigger, Every) or bound.planned.trigger is None:
                continue
            for owner, _, term in self._program.terms(bound, bound.planned.trigger):
                for body in owner.scope.around():
                    if body is not bound.scope and body.prefix.startswith(bound.scope.prefix):
                        restarting.setdefault(body, []).append((bound.trigger, term.base.unit))
        return restarting

    def _amounts(self, bound: BoundNode) -> Iterator[Amount]:
        """The amounts of the trigger of a node, if it has one."""
        named = ((bound.kind.trigger, bound.planned.trigger), (FROM, bound.planned.start))
        for name, trigger in named if not bound.bypassed else ():
            for owner, field_name, term in self._program.terms(bound, trigger) if trigger is not None else ():
                yield f"{bound.path}.{name}", term, owner, field_name

    def refuse_fractions(self, amounts: Iterable[Amount]) -> None:
        """Raise if some of these amounts are fractions of what is counted as a whole only; whole ones never are.

        Raises:
            UsageError: such as ``"0.25 epochs"`` of data without a length.
        """
        refused = []
        for name, term, owner, field_name in amounts:
            if term.base.amount.denominator != 1 and not self.clock(owner, field_name).counts_fractions():
                refused.append((f'{name} = "{term}"', owner, name))
        if refused:
            texts, (_, counter, name) = ", ".join(text for text, _, _ in refused), refused[0]
            data = [leaf for read, target in counter.planned.setup_reads if read.is_batches for leaf in leaves(target)]
            named = (
                f"`{data[0].name}`" if data and isinstance(data[0], ResourceTarget) else f"the data of `{counter.path}`"
            )
            raise UsageError(
                f"{texts}: {named} has no length, so a fraction of an epoch cannot be counted",
                f'count batches or steps, as in {name} = "100 batches", or whole epochs; or give the data a `__len__`',
            )

    def _trigger(self, bound: BoundNode) -> Every | After | None:
        trigger = bound.planned.trigger
        if trigger is None or bound.bypassed:
            return None
        clocks = self.clocks(bound, trigger)
        if bound.kind.trigger != "every":
            return After(clocks, bound.instance, str(trigger))
        start = bound.planned.start
        may_be_due = after(self.clocks(bound, start)) if start is not None else None
        return Every(clocks, bound.instance, once=trigger.once, may_be_due=may_be_due)

    def due(self, bound: BoundNode) -> Due:
        """A call that answers whether a node is due: by its trigger, or by a field that its kind declares."""
        trigger = bound.planned.trigger
        if bound.bypassed:
            return never
        if trigger is None:
            return yes
        calls = [self.cells.field(bound, name).read for name in bound.planned.also_due]
        if not trigger.is_never or isinstance(bound.trigger, After):
            assert bound.trigger is not None, "compiled before"
            calls.insert(0, bound.trigger.due)
        if trigger.at_end and isinstance(bound.trigger, Every):
            calls.append(both(bound.trigger.has_moved, self.ending(bound.scope)))
        if not calls:
            return never
        return bound.trigger.not_before(any_of(calls)) if isinstance(bound.trigger, Every) else any_of(calls)

    def ending(self, scope: BoundGraph) -> Due:
        """A call that answers whether the end of a graph is asked for."""
        return self.compiled(scope, scope.names.ending)

    def compiled(self, scope: BoundGraph, expression: Expression) -> Act:
        """A call that answers a guard, or returns the value of another expression of a graph."""
        return compile_guard(expression, functools.partial(self.cells.named, scope))

    # ---- transitions

    def _transition(self, bound: BoundNode) -> Transition:
        leave = self.table.exits[bound.index]
        if bound.bypassed:
            return leave
        if bound.body is not None:
            return self._entering(bound, bound.body, leave)
        own_act = self._evaluated(bound, self._act(bound))
        if self._rounds is not None:
            own_act = self._rounds.act(bound, own_act)
        act, fields = self.windows.wrap(bound, own_act), bound.fields
        if bound.planned.kills:
            act = then(act, functools.partial(self._forget, sorted(bound.planned.kills)))
        if isinstance(bound.trigger, Every):
            return triggered(act, fields, bound.trigger, self.due(bound), leave)
        target = self._only_target(bound)
        if target is not None:
            return straight(act, fields, self.position(target))
        return choosing(act, fields, leave)

    def _timed(self, bound: BoundNode, transition: Transition) -> Transition:
        if not bound.kind.activity or bound.bypassed:
            return transition
        if bound.scope.activity is not None:  # counted as a whole
            return self._watch.ticking(transition)
        return self._watch.timed(transition, bound.kind.activity)

    def _entering(self, bound: BoundNode, body: BoundGraph, leave: Transition) -> Transition:
        start = self.position(body.nodes[body.graph.start])
        trigger, watch, is_due = bound.trigger, self._watch, self.due(bound)
        inner_nodes = [inner for scope in body.inner() for inner in scope.nodes.values()]
        program, is_training = self._program, body in self._program.training
        begins_activity = body.activity is not None and bound.scope.activity is None
        # What an earlier visit wrote is not kept over a save either.
        slots, forgotten = self._slots, [self._program.slot_index(body.prefix + slot) for slot in body.names.written]

        def enter() -> int:
            if isinstance(trigger, Every) and not is_due():
                return leave()
            for index in forgotten:
                slots[index] = None
            if begins_activity:
                watch.enter(bound.node.name)
            for inner in inner_nodes:
                inner.kind.reset(inner.instance)
            if is_training:
                program.clocked = body
            self.enter(body, reset=True)
            return start

        return enter

    def _finish_body(self, scope: BoundGraph) -> Transition:
        """The end of a body: its outputs go outward, the outer node has run, and one of its edges is chosen."""
        outer = scope.outer
        assert outer is not None
        copies = [
            (self._program.slot_index(scope.prefix + slot), target)
            for slot, target in zip(outputs_of(scope.graph), self._indices(outer), strict=True)
        ]
        acting = [bound for bound in scope.nodes.values() if bound.kind.acts_at_body_end and not bound.bypassed]
        acts = [self._at_end(bound, bound.instance.at_body_end) for bound in self._last_ones_last(acting)]
        slots, record, trigger, watch = self._slots, outer.instance, outer.trigger, self._watch
        ends_activity = scope.activity is not None and outer.scope.activity is None
        program = self._program
        # Where none of the graphs around trains, the run goes by the clock of this one until another begins.
        around = [graph for graph in outer.scope.around() if graph in program.training]
        resumed = around[-1] if around and scope in program.training else None

        def finish() -> int:
            for act in acts:
                act()
            if ends_activity:
                watch.leave()
            if resumed is not None:
                program.clocked = resumed
            for source, target in copies:
                slots[target] = slots[source]
            if isinstance(trigger, Every):
                trigger.fire()
            record.runs += 1
            return self.table.exits[outer.index]()

        return finish

    def _evaluated(self, bound: BoundNode, act: Act) -> Act:
        """The call of a node of a class, before which its object gets the values of its expressions."""
        if isinstance(bound.instance, FunctionRecord) or not bound.planned.expressions:
            return act
        fields = bound.fields
        getters = [(name, self.expression(target)) for name, target in bound.planned.expressions.items()]

        only_name, only_get = getters[0]

        def visit_one() -> Any:
            fields[only_name] = only_get()
            return act()

        def visit() -> Any:
            for name, get in getters:
                fields[name] = get()
            return act()

        return visit_one if len(getters) == 1 else visit  # a loop costs 0.1 us more

    def _act(self, bound: BoundNode) -> Act:
        """The call of a node with its slots, its result stored."""
        if not isinstance(bound.instance, FunctionRecord):
            function = bound.instance.__call__
        elif bound.planned.expressions:
            function = self._with_expressions(bound)
        elif bound.kind.passed(bound.parameters):
            function = functools.partial(bound.kind.implementation, **bound.kind.passed(bound.parameters))
        else:
            function = bound.kind.implementation
        call = self._call(function, bound)
        if bound.kind.reports_backward:
            self.windows.reports[bound.index] = report = Report(bound.path)
            return storing_reported(call, self._slots, self._indices(bound), report)
        return storing(call, self._slots, self._indices(bound))

    def _with_expressions(self, bound: BoundNode) -> Callable[..., Any]:
        """A function with its parameters, of which some are evaluated at every call."""
        implementation, parameters = bound.kind.implementation, bound.kind.passed(bound.parameters)
        getters = [(name, self.expression(target)) for name, target in bound.planned.expressions.items()]

        only_name, only_get = getters[0]

        def function_of_one(*slots: Any) -> Any:
            parameters[only_name] = only_get()
            return implementation(*slots, **parameters)

        def function(*slots: Any) -> Any:
            for name, get in getters:
                parameters[name] = get()
            return implementation(*slots, **parameters)

        return function_of_one if len(getters) == 1 else function

    def _indices(self, bound: BoundNode) -> list[int]:
        """The slots that a node writes."""
        return [self._program.slot_index(path) for path in bound.planned.own_writes]

    def _call(self, function: Callable[..., Any], bound: BoundNode) -> Act:
        """A call without arguments, specialised by their number: a general one costs 0.12 us more."""
        slots, reads, program = self._slots, bound.planned.reads, self._program

        def is_at_default(read: Read, target: Target) -> bool:
            """True for a resource that nobody supplies, and that is read with a default."""
            if read.required or not isinstance(target, ResourceTarget):
                return False
            return program.resource(target.name, read, bound.path) is read.default

        while reads and is_at_default(*reads[-1]):  # 0.05 us for one that is passed
            reads = reads[:-1]
        cells = [self.cells.of(bound, read, target) for read, target in reads]
        indices = [index for cell in cells if (index := self.cells.index(cell)) is not None]
        if len(indices) < len(cells):
            getters = [cell.read for cell in cells]
            return lambda: function(*[get() for get in getters])
        match indices:
            case []:
                return function
            case [a]:
                return lambda: function(slots[a])
            case [a, b]:
                return lambda: function(slots[a], slots[b])
            case [a, b, c]:
                return lambda: function(slots[a], slots[b], slots[c])
            case [a, b, c, d]:
                return lambda: function(slots[a], slots[b], slots[c], slots[d])
            case [a, b, c, d, e]:
                return lambda: function(slots[a], slots[b], slots[c], slots[d], slots[e])
        return lambda: function(*[slots[index] for index in indices])

    def expression(self, target: ExpressionTarget) -> Act:
        """A call that returns the value of an expression, as its parameter has it.

        Raises:
            ExpressionError: when called: it raises, or has a value that the parameter cannot have.
        """
        scope = self._program.scopes.get(target.scope.path)
        if scope is None:  # of a node in a body that is bypassed
            path, _, name = target.name.rpartition(".")
            return constant(self.cells.absent(path, name)).read
        return evaluated(target, self.compiled(scope, target.expression))

    # ---- edges

    def position(self, bound: BoundNode) -> int:
        """The position of a node, or of what follows it where it is bypassed and has one way out."""
        seen: set[int] = set()
        while bound.bypassed and bound.index not in seen:
            seen.add(bound.index)
            bound = self._only_target(bound) or bound
        return bound.index

    def _only_target(self, bound: BoundNode) -> BoundNode | None:
        """The node that the only edge leads to; None if there are several edges, or it ends the graph."""
        targets = self._program.targets(bound)
        return targets[0] if len(targets) == 1 else None

    def _exit(self, bound: BoundNode) -> Transition:
        """Choose the exit edge: the first whose guard holds."""
        leave = self._choosing_edge(bound)
        if self._rounds is None or len(bound.scope.graph.edges[bound.node.name]) == 1:
            return leave
        return self._rounds.agreement.watch_choices(bound.index, leave)

    def _choosing_edge(self, bound: BoundNode) -> Transition:
        guards = [(way.when, self._edge_guard(bound.scope, way)) for way in bound.planned.exits if way.when is not None]
        *arrivals, (last_position, last_call) = [
            self._arrival(bound, target) for target in self._program.targets(bound)
        ]
        choices = [
            (guard, *arrival) for (_, guard), arrival in zip(guards, arrivals, strict=True) if guard is not never
        ]
        raising = functools.partial(self._raising, bound.scope)
        diagnosed = functools.partial(_diagnosed, bound, guards, raising)
        if not choices:
            return last_call or (lambda: last_position)
        if len(choices) == 1 and choices[0][2] is None and last_call is None:
            return two_ways(choices[0][0], choices[0][1], last_position, diagnosed)

        def leave() -> int:
            try:
                for guard, position, call in choices:
                    if guard():
                        return position if call is None else call()
            except Exception as error:
                raise diagnosed(error) from None
            return last_position if last_call is None else last_call()

        return leave

    def _edge_guard(self, scope: BoundGraph, way: Exit) -> Act:
        assert way.guard is not None, "asked before"
        return self.compiled(scope, way.guard)

    def _arrival(self, bound: BoundNode, target: BoundNode | None) -> tuple[int, Transition | None]:
        """A position, or a call that returns one where an edge ends its graph."""
        if target is not None:
            return self.position(target), None
        if bound.scope.outer is not None:
            return -1, self._finish_body(bound.scope)
        position, ended = bound.index, self._ended

        def end() -> int:
            ended()
            return position

        return -1, end

    def open_targets(self, bound: BoundNode) -> Iterator[BoundNode | None]:
        """Where the edges of a node lead whose guards hold now, in order; None is the end. To ask changes nothing.

        Raises:
            GuardError: a guard raises.
        """
        graph = bound.scope.graph
        for edge, target in zip(graph.edges[bound.node.name], self._program.targets(bound), strict=True):
            try:
                holds = edge.when is None or self.compiled(bound.scope, bound.scope.names.guards[edge.when])()
            except Exception as error:
                own = self._raising(bound.scope, edge.when or "", error)
                raise GuardError(bound.path, own, graph.guards[own], error) from None
            if holds:
                yield target

    def _raising(self, scope: BoundGraph, name: str, error: Exception) -> str:
        """Which guard raises by itself: one, or another that it names, where that raises the same."""
        for part in walk(scope.names.parse(scope.graph.guards[name])):
            if isinstance(part, Name) and part.name in scope.graph.guards:
                try:
                    self.compiled(scope, scope.names.guards[part.name])()
                except Exception as inner:
                    if str(inner) == str(error):
                        return self._raising(scope, part.name, error)
        return name


def _diagnosed(
    bound: BoundNode, guards: list[tuple[str, Due]], raising: Callable[[str, Exception], str], error: Exception
) -> Exception:
    """The error with the guard that raised it: guards are pure, so evaluating them again finds it.

    An error from the end of a body, which an edge calls too, stays as it is.
    """
    for name, guard in guards:
        try:
            if guard():
                break
        except Exception:
            own = raising(name, error)
            return GuardError(bound.path, own, bound.scope.graph.guards[own], error)
    return error
