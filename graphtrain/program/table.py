"""The table of calls: one closure per position, which runs the node, counts the run, and answers the next position.

Everything a visit needs is bound here, once: slots by index, guards as closures, edges as numbers. A visit of a node
without work costs 0.15 us.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from graphtrain.errors import GuardError
from graphtrain.graph.elements import NESTED
from graphtrain.guards.closures import Scope, compile_guard, never
from graphtrain.guards.syntax import Constant, Expression, FieldOf, Name
from graphtrain.kind import FunctionRecord
from graphtrain.kind.trigger import Trigger
from graphtrain.program.bind import (
    BoundGraph,
    BoundNode,
    ConstantPlace,
    FieldPlace,
    Place,
    Program,
    SlotPlace,
    TuplePlace,
)
from graphtrain.program.resources import StepCall, StepInputs
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.triggers import Clock, Due, Every, after

Visit = Callable[[], int]
Act = Callable[[], Any]


@dataclass
class TransitionTable:
    """What the loop runs.

    Attributes:
        visits: position -> run the node, answer the next position.
        exits: position -> choose the exit edge again, without running the node.
        setups: position -> call the node's `setup` (nothing for most).
        asked: path -> what the user's functions called there read beside the model and the batch.
    """

    visits: list[Visit] = field(default_factory=list)
    exits: list[Visit] = field(default_factory=list)
    setups: list[Act] = field(default_factory=list)
    asked: dict[str, list[Place]] = field(default_factory=dict)


class Witness(Protocol):
    """Sees what a table does, by calls of its own around its calls; one made without it knows nothing of it."""

    def visit(self, bound: BoundNode, visit: Visit) -> Visit:
        """In the place of the visit of a node."""

    def leave(self, bound: BoundNode, leave: Visit) -> Visit:
        """In the place of the choice among the edges of a node."""

    def guard(self, bound: BoundNode, name: str, names: Scope) -> Due:
        """In the place of a guard on an edge of a node."""


class Compiler:
    """Makes the table of a program.

    A program may have several tables: what their calls work on, triggers included, is the program's.

    Arguments:
        ended: called when the outermost graph ends.
        watch: times the visits.
        witness: sees what the table does. Default: nobody, and nothing is spent on it.
    """

    def __init__(self, program: Program, ended: Act, watch: Stopwatch, witness: Witness | None = None) -> None:
        self._program = program
        self._ended = ended
        self._watch = watch
        self._witness = witness
        self._slots = program.slots
        self._counters = self._effect_counters()
        self.table = TransitionTable()
        for bound in program.nodes:
            if bound.trigger is None:
                bound.trigger = self._trigger(bound)
        self.table.setups = [self._setup(bound) for bound in program.nodes]
        exits = [self._leave(bound) for bound in program.nodes]
        self.table.exits = exits if witness is None else list(map(witness.leave, program.nodes, exits))
        visits = [self._timed(bound, self._visit(bound)) for bound in program.nodes]
        self.table.visits = visits if witness is None else list(map(witness.visit, program.nodes, visits))

    # ---- entering graphs

    def enter(self, scope: BoundGraph, *, reset: bool, ready: Collection[BoundNode] = ()) -> None:
        """Set the nodes of a graph up; `reset` begins anew, otherwise their progress is gone on from.

        Those that are `ready` were set up before, and are not again. The order is that of names: where a node stands
        in a file is no difference, not even to the random numbers that a `setup` draws.
        """
        for bound in scope.nodes.values():
            if reset:
                bound.kind.reset(bound.instance)
        for _, bound in sorted(scope.nodes.items()):
            if not bound.bypassed and bound not in ready:
                self.table.setups[bound.index]()
        for bound in scope.nodes.values():
            if isinstance(bound.trigger, Every):
                bound.trigger.start()

    def _setup(self, bound: BoundNode) -> Act:
        if bound.kind.setup_reads is None or bound.bypassed:
            return _nothing
        getters = [self._getter(place) for place in bound.setup_reads]
        setup = bound.instance.setup
        return lambda: setup(*(get() for get in getters))

    # ---- triggers

    def clock(self, bound: BoundNode, field_name: str) -> Clock:
        """The clock that a field of a node is."""
        return Clock(bound.instance, field_name, bound.kind.fields[field_name].restarts)

    def _trigger(self, bound: BoundNode) -> Every | Due | None:
        name = bound.kind.trigger
        trigger = bound.parameters.get(name) if name is not None else None
        if not isinstance(trigger, Trigger) or bound.bypassed:
            return None
        terms = [(self.clock(owner, counted), term) for owner, counted, term in self._program.terms(bound, trigger)]
        return Every(terms, bound.instance) if name == "every" else after(terms)

    def _due(self, bound: BoundNode) -> Due:
        trigger = bound.parameters.get(bound.kind.trigger or "")
        if bound.bypassed or (isinstance(trigger, Trigger) and not trigger.terms):
            return never
        if isinstance(bound.trigger, Every):
            return bound.trigger.due
        return bound.trigger if bound.trigger is not None else _yes

    # ---- visits

    def _visit(self, bound: BoundNode) -> Visit:
        leave = self.table.exits[bound.index]
        if bound.bypassed:
            return leave
        if bound.body is not None:
            return self._entering_visit(bound, bound.body, leave)
        act = self._act(bound)
        for counter, name in self._counters.get(bound.index, ()):
            for effect in bound.kind.effects:  # in their order: what is put around last happens last
                if effect == "backward":
                    act = _counting(act, counter.fields, name)
                elif effect == "zero_grad":
                    act = _clearing(act, counter.fields, name)
        fields = bound.fields
        if isinstance(bound.trigger, Every):
            return _triggered_visit(act, fields, bound.trigger, leave)
        target = self._only_target(bound)
        if target is not None:
            return _straight_visit(act, fields, target)
        return _choosing_visit(act, fields, leave)

    def _timed(self, bound: BoundNode, visit: Visit) -> Visit:
        if not bound.kind.activity or bound.bypassed:
            return visit
        inside = bound.scope.activity is not None
        return self._watch.ticking(visit) if inside else self._watch.timed(visit, bound.kind.activity)

    def _entering_visit(self, bound: BoundNode, body: BoundGraph, leave: Visit) -> Visit:
        start = self._position(body.nodes[body.graph.start])
        trigger = bound.trigger
        inside = [body, *body.inner()]
        watch = self._watch
        begins = body.activity is not None and bound.scope.activity is None

        def visit() -> int:
            if isinstance(trigger, Every) and not trigger.due():
                return leave()
            if begins:
                watch.enter(bound.node.name)
            for scope in inside[1:]:
                for each in scope.nodes.values():
                    each.kind.reset(each.instance)
            self.enter(body, reset=True)
            return start

        return visit

    def _finish_body(self, scope: BoundGraph) -> Visit:
        """The end of a body: its outputs go outward, the outer node has run, and its edges are chosen."""
        outer = scope.outer
        assert outer is not None
        copies = [
            (self._program.slot_index(scope.prefix + slot), target)
            for slot, target in zip(scope.graph.outputs, outer.writes, strict=True)
        ]
        slots, record, trigger = self._slots, outer.instance, outer.trigger
        watch = self._watch
        ends = scope.activity is not None and outer.scope.activity is None

        def finish() -> int:
            if ends:
                watch.leave()
            for source, target in copies:
                slots[target] = slots[source]
            if isinstance(trigger, Every):
                trigger.fire()
            record.runs += 1
            return self.table.exits[outer.index]()

        return finish

    def _act(self, bound: BoundNode) -> Act:
        """The call of a node with its slots, its result stored."""
        if not isinstance(bound.instance, FunctionRecord):
            function = bound.instance.__call__
        elif bound.parameters:
            function = functools.partial(bound.kind.implementation, **bound.parameters)
        else:
            function = bound.kind.implementation
        call = self._call(function, self._arguments(bound))
        return _storing(call, self._slots, bound.writes)

    def _arguments(self, bound: BoundNode) -> list[Place]:
        arguments = []
        for read, place in zip(bound.kind.reads, bound.reads, strict=True):
            if isinstance(place, ConstantPlace) and isinstance(place.value, StepCall):
                plain = place.value.function
                place = ConstantPlace(self._bound_step_function(bound, place.value) if read.is_step_function else plain)
            arguments.append(place)
        return arguments

    def _bound_step_function(self, bound: BoundNode, function: StepCall) -> Any:
        """A user's step function, called with the model and the batch; what else it asks for is looked up here."""
        if not function.extra_inputs:
            return function.call
        places = [self._program.place_asked_for(bound, read) for read in function.extra_inputs]
        self.table.asked.setdefault(bound.path, []).extend(places)
        getters = [(read.name, self._getter(place)) for read, place in zip(function.extra_inputs, places, strict=True)]
        return StepInputs(function.call, tuple(getters))

    def _call(self, function: Callable[..., Any], places: list[Place]) -> Act:
        """A call without arguments, specialised by their number: a general one costs 0.12 us more."""
        if not all(isinstance(place, SlotPlace | ConstantPlace) for place in places):
            getters = [self._getter(place) for place in places]
            return lambda: function(*[get() for get in getters])
        slots, indices = self._slots, [self._slot_of(place) for place in places]
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

    def _slot_of(self, place: Place) -> int:
        """The index of a slot; a constant is given a slot of its own."""
        if isinstance(place, SlotPlace):
            return place.index
        assert isinstance(place, ConstantPlace)
        self._slots.append(place.value)
        return len(self._slots) - 1

    def _getter(self, place: Place) -> Act:
        slots = self._slots
        match place:
            case SlotPlace(index):
                return lambda: slots[index]
            case ConstantPlace(value):
                return lambda: value
            case FieldPlace(bound, name):
                if name == "due":
                    return self._due(bound)
                fields = bound.fields
                if name in fields:
                    return lambda: fields[name]
                return functools.partial(getattr, bound.instance, name)
            case TuplePlace(places):
                if all(isinstance(one, ConstantPlace) for one in places):
                    value = tuple(one.value for one in places if isinstance(one, ConstantPlace))
                    return lambda: value
                getters = [self._getter(one) for one in places]
                return lambda: tuple(get() for get in getters)
        raise AssertionError(place)

    # ---- edges

    def _position(self, bound: BoundNode) -> int:
        """The position of a node, or of what follows it where it is bypassed and has one way out."""
        seen: set[int] = set()
        while bound.bypassed and bound.index not in seen:
            seen.add(bound.index)
            targets = self._program.targets(bound)
            if len(targets) != 1 or targets[0] is None:
                break
            bound = targets[0]
        return bound.index

    def _only_target(self, bound: BoundNode) -> int | None:
        targets = self._program.targets(bound)
        if len(targets) != 1 or targets[0] is None:
            return None
        return self._position(targets[0])

    def _leave(self, bound: BoundNode) -> Visit:
        """Choose the exit edge: the first whose guard holds."""
        edges = bound.scope.graph.edges[bound.node.name]
        calls = [self._arrival(bound, target) for target in self._program.targets(bound)]
        guards = [(edge.when, self._guard(bound, edge.when)) for edge in edges if edge.when is not None]
        choices = [
            (guard, *arrival) for (_, guard), arrival in zip(guards, calls[:-1], strict=True) if guard is not never
        ]
        last_position, last_call = calls[-1]

        def failed(error: Exception) -> GuardError | None:
            """The error of a guard; None for one from the end of a body, which is called here too."""
            return _diagnose(bound, guards, error)

        if not choices:
            return last_call or (lambda: last_position)
        if len(choices) == 1 and choices[0][2] is None and last_call is None:
            return _two_ways(choices[0][0], choices[0][1], last_position, failed)

        def leave() -> int:
            try:
                for guard, position, call in choices:
                    if guard():
                        return position if call is None else call()
            except Exception as error:
                raise failed(error) or error from None
            return last_position if last_call is None else last_call()

        return leave

    def _guard(self, bound: BoundNode, name: str) -> Due:
        names = _Names(self, bound.scope)
        if self._witness is not None:
            return self._witness.guard(bound, name, names)
        return compile_guard(bound.scope.guards[name], names)

    def _arrival(self, bound: BoundNode, target: BoundNode | None) -> tuple[int, Visit | None]:
        """A position, or a call that makes one where an edge ends its graph."""
        if target is not None:
            return self._position(target), None
        if bound.scope.outer is not None:
            return -1, self._finish_body(bound.scope)
        position, ended = bound.index, self._ended

        def end() -> int:
            ended()
            return position

        return -1, end

    # ---- effects

    def _effect_counters(self) -> dict[int, list[tuple[BoundNode, str]]]:
        """Position -> the counters of windows that a backward or a clearing there changes."""
        counters = [
            (bound, one.name)
            for bound in self._program.nodes
            for one in bound.kind.fields.values()
            if one.counts is not None and not bound.bypassed
        ]
        return {
            bound.index: [
                (counter, name) for counter, name in counters if set(counter.optimizers) & set(bound.optimizers)
            ]
            for bound in self._program.nodes
            if {"backward", "zero_grad"} & set(bound.kind.effects) and bound.kind.name != NESTED
        }

    def field_value(self, bound: BoundNode, name: str) -> Any:
        """The value of a field now."""
        return self._getter(FieldPlace(bound, name))()

    def guard_getter(self, scope: BoundGraph, expression: Name | FieldOf) -> Act:
        """A call that answers what a name in a guard holds: a slot must hold a Python number or text.

        Reading a tensor would wait for its device at every visit.
        """
        place = self._program.guard_place(scope, expression)
        get = self._getter(place)
        if not isinstance(place, SlotPlace):
            return get
        name = self._program.slot_names[place.index]

        def read() -> Any:
            value = get()
            if not isinstance(value, bool | int | float | str):
                came = f"a {type(value).__name__}" if value is not None else "nothing yet"
                raise TypeError(f"the slot `{name}` holds {came}; a guard reads Python numbers and text")
            return value

        return read


@dataclass(frozen=True)
class _Names:
    """What names in the guards of one bound graph stand for."""

    compiler: Compiler
    scope: BoundGraph

    def constant(self, expression: Expression) -> Constant | None:
        if not isinstance(expression, FieldOf):
            return None
        bound = self.scope.nodes[expression.node]
        if expression.field in bound.kind.parameters:
            return Constant(bound.parameters[expression.field])
        return None

    def reader(self, expression: Name | FieldOf) -> Act:
        return self.compiler.guard_getter(self.scope, expression)

    def held(self, expression: Expression) -> tuple[dict[str, Any], str] | None:
        if not isinstance(expression, FieldOf):
            return None
        bound = self.scope.nodes[expression.node]
        is_field = expression.field in bound.kind.fields  # a parameter is none
        return (bound.fields, expression.field) if is_field and expression.field in bound.fields else None


def _nothing() -> None:
    return None


def _yes() -> bool:
    return True


def _storing(call: Act, slots: list[Any], writes: list[int]) -> Act:
    if not writes:
        return call
    if len(writes) == 1:
        index = writes[0]

        def store() -> None:
            slots[index] = call()

        return store
    if len(writes) == 2:
        first, second = writes

        def store_two() -> None:
            slots[first], slots[second] = call()

        return store_two

    def store_all() -> None:
        for index, value in zip(writes, call(), strict=True):
            slots[index] = value

    return store_all


# These closures serve nodes of every kind, so they go to the dictionary of a node's object: where the class differs
# from call to call, `record.runs += 1` costs three times as much.


def _counting(act: Act, fields: dict[str, Any], name: str) -> Act:
    def count() -> None:
        act()
        fields[name] += 1

    return count


def _clearing(act: Act, fields: dict[str, Any], name: str) -> Act:
    def clear() -> None:
        act()
        fields[name] = 0

    return clear


def _straight_visit(act: Act, fields: dict[str, Any], target: int) -> Visit:
    def visit() -> int:
        act()
        fields["runs"] += 1
        return target

    return visit


def _choosing_visit(act: Act, fields: dict[str, Any], leave: Visit) -> Visit:
    def visit() -> int:
        act()
        fields["runs"] += 1
        return leave()

    return visit


def _triggered_visit(act: Act, fields: dict[str, Any], trigger: Every, leave: Visit) -> Visit:
    is_due = trigger.due

    def visit() -> int:
        if is_due():
            act()
            trigger.fire()
            fields["runs"] += 1
        return leave()

    return visit


def _two_ways(guard: Due, position: int, otherwise: int, failed: Callable[[Exception], Exception | None]) -> Visit:
    def leave() -> int:
        try:
            return position if guard() else otherwise
        except Exception as error:
            raise failed(error) or error from None

    return leave


def _diagnose(bound: BoundNode, guards: list[tuple[str, Due]], error: Exception) -> GuardError | None:
    """Which guard raised: guards are pure, so asking them again finds it. None if it was no guard."""
    for name, guard in guards:
        try:
            if guard():
                return None
        except Exception:
            return GuardError(bound.path, name, bound.scope.graph.guards[name], error)
    return None
