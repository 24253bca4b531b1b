"""G3xx: every slot is written before it is read: a forward analysis of what is written on all paths, and on some."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphtrain.graph.elements import Problem
from graphtrain.language.closures import Cell, compile_guard
from graphtrain.language.syntax import Expression, FieldOf, Name, Operation
from graphtrain.names import quoted
from graphtrain.plan.flow import Flow, FlowPoint, changers
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Scope, resources_of, slots_of
from graphtrain.plan.slots import Slots
from graphtrain.plan.solve import solve

Before = Mapping[FlowPoint, tuple[int, int]]
"""What is written when a point is reached: on all paths, and on some. A point that no path leads to is not in it.

A slot that was read on a path counts as written from there on, so that it is reported once, not at every reader.
"""


def written_before(slots: Slots, until: FlowPoint | None = None) -> Before:
    """The slots that are written when each point is reached.

    Arguments:
        until: a point at which paths stop, for the slots written when it is first reached. Default: all paths are
            followed.
    """

    def transfer(point: FlowPoint, written: tuple[int, int]) -> Iterator[tuple[FlowPoint, tuple[int, int]]]:
        if point is not until:
            always, sometimes = written
            after = _surely_after(slots, point, always) | slots.guards[point], _written_after(slots, point, sometimes)
            yield from ((arrow.target, after) for arrow in point.arrows)

    return solve({slots.flow.start: (0, 0)}, transfer, lambda one, other: (one[0] & other[0], one[1] | other[1]))


def _written_after(slots: Slots, point: FlowPoint, before: int) -> int:
    """The slots written after a visit; the outputs of a body are those written inside."""
    use = slots.uses[point]
    after = (before & ~use.kills) | use.defines
    for inner, outer in slots.body_outputs[point]:
        if inner and not before & inner:
            after &= ~outer
    return after


def _surely_after(slots: Slots, point: FlowPoint, before: int) -> int:
    """The slots certainly written after a visit: not outputs that may be absent, whatever the body does."""
    return (_written_after(slots, point, before) & ~slots.uses[point].maybe) | _needs(slots, point)


def _needs(slots: Slots, point: FlowPoint) -> int:
    """The slots that a visit needs, except outputs of a body, which may be absent: their readers are checked."""
    return 0 if slots.body_outputs[point] else slots.uses[point].requires


def check_data_flow(slots: Slots, before: Before) -> Iterator[Problem]:
    """Every problem of slots."""
    flow = slots.flow
    needs, _ = slots.set_up_with(flow.scope)
    for slot in slots.named(needs):
        name = next(
            plan_node.node.name
            for plan_node in flow.plan.nodes_in(flow.scope)
            if slot in slots_of(target for _, target in plan_node.setup_reads)
        )
        yield flow.scope.problem(
            "G303",
            f"nodes.{name}",
            f"`{name}` is set up with `{slot}` before the graph runs, and only the graph writes it",
            "let it read the slot when it is called, not in `setup`",
        )
    yield from _unwritten(slots, before)
    yield from _recorded_twice(flow)


@dataclass
class _Reading:
    """The slots read by a node or the guards on its edges: those missing on some path, and those present on some."""

    point: FlowPoint
    verb: str
    missed: int = 0
    met: int = 0


def _unwritten(slots: Slots, before: Before) -> Iterator[Problem]:
    """Slots that are read too early."""
    readings: dict[tuple[str, str], _Reading] = {}

    def note(point: FlowPoint, verb: str, needed: int, always: int, sometimes: int) -> None:
        if needed:
            reading = readings.setdefault((point.path, verb), _Reading(point, verb))
            if needed & ~always and not reading.missed:
                reading.point = point
            reading.missed |= needed & ~always
            reading.met |= needed & sometimes

    for point in slots.flow.points:
        if point not in before or point.node is None:
            continue
        needs, (always, sometimes) = _needs(slots, point), before[point]
        verb = "reads" if point.node.body is None else "sets its nodes up with"
        note(point, verb, needs, always, sometimes)
        surely, maybe = _surely_after(slots, point, always), _written_after(slots, point, sometimes)
        note(point, "guard", slots.guards[point], surely, maybe)
    for reading in readings.values():
        never, later = reading.missed & ~reading.met, reading.missed & reading.met
        first = later and later & _unwritten_at_first(slots, reading)
        for when, bits in (("never", never), ("first", first), ("sometimes", later & ~first)):
            if bits:
                yield _missed(slots, reading, bits, when)


def _unwritten_at_first(slots: Slots, reading: _Reading) -> int:
    """The slots that a node, or a guard on its edges, may read at its first visit, before anything has written them."""
    point, plan_node = reading.point, reading.point.plan_node
    assert plan_node is not None
    before = written_before(slots, point)
    visited = {each.node.name for each in before if each.scope is point.scope and each.node is not None}
    visit = _FirstVisit(slots.flow.plan, point.scope, visited)
    if reading.verb == "guard":
        guards = [way.guard for way in plan_node.exits if way.guard is not None]
        names = visit.names(Operation("or", tuple(guards)))  # none is evaluated after one that holds
        return slots.bits(slots_of(map(point.scope.resolve, names))) & ~_written_after(slots, point, before[point][1])
    targets = [target for _, target in plan_node.visit_reads]
    computed = [target for target in targets if target.kind == "expression"]
    names = itertools.chain.from_iterable(visit.names(target.expression) for target in computed)
    always = reading.missed & ~slots.bits(slots_of(computed))
    return (always | slots.bits(slots_of(map(point.scope.resolve, names)))) & ~before[point][1]


class _FirstVisit:
    """What expressions read at the first visit of a node: they stop evaluating where their value is decided.

    Arguments:
        visited: the nodes that may be visited before. What only others change has its initial value; a condition that
            is not known counts as false, so that `step.steps > 9 and late` reads no `late`.
    """

    def __init__(self, plan: Plan, scope: Scope, visited: set[str]) -> None:
        self._plan, self._scope, self._visited = plan, scope, visited

    def names(self, expression: Expression) -> Iterator[str]:
        """The names that are read."""
        match expression:
            case Name(name):
                yield name
            case Operation("and" | "or" as operator, operands):
                for operand in operands:
                    yield from self.names(operand)
                    if self._holds(operand) is (operator == "or"):
                        return
            case Operation("if", (condition, then, otherwise)):
                yield from self.names(condition)
                yield from self.names(then if self._holds(condition) else otherwise)
            case Operation(_, operands):
                yield from itertools.chain.from_iterable(map(self.names, operands))

    def _holds(self, expression: Expression) -> bool:
        try:
            return bool(compile_guard(expression, lambda part: Cell(lambda: self._initial(part)))())
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return False

    def _initial(self, part: Name | FieldOf) -> Any:
        inside = self._scope.inside(part.node) if isinstance(part, FieldOf) else None
        if isinstance(part, Name) or inside is None or changers(self._plan, self._scope, part) & self._visited:
            raise ValueError("it is not known, or may have changed")
        plan_node = self._plan.by_path[f"{self._scope.path}{part.node}"]
        kind, trigger = plan_node.kind, plan_node.trigger
        if part.field == "due" and trigger is not None and not trigger.once:
            return False
        if kind is None or part.field not in kind.fields or not kind.fields[part.field].stored:
            raise ValueError("it is computed, or a parameter")
        return kind.fields[part.field].default


_WHEN = {
    "never": "nothing has written before on any path",
    "first": "nothing has written before its first visit",
    "sometimes": "nothing has written before on some path",
}


def _missed(slots: Slots, reading: _Reading, bits: int, when: str) -> Problem:
    point, is_guard, sources = reading.point, reading.verb == "guard", _sources(slots, bits)
    writers = [
        writer.path
        for writer in slots.flow.points
        if slots.uses[writer].defines & sources and not slots.body_outputs[writer]
    ]
    reads = f"a guard on an edge leaving `{point.path}` reads" if is_guard else f"`{point.path}` {reading.verb}"
    writing = quoted(dict.fromkeys(writers))
    return point.problem(
        "G304" if when == "sometimes" else "G303",
        f"{reads} {quoted(slots.named(bits))}, which {_WHEN[when]}: it is written by {writing}",
        f"route every path through {writing} first, or "
        + ("move the edge to where it is written" if is_guard else "give the read a default (`= None`)"),
        thing="edges" if is_guard else "nodes",
        severity="warning" if when == "sometimes" else "error",
    )


def _sources(slots: Slots, bits: int) -> int:
    """Some slots, and the slots inside bodies that become them as outputs."""
    pairs = [pair for point in slots.flow.points for pair in slots.body_outputs[point]]
    while inside := [inner for inner, outer in pairs if outer & bits and inner & ~bits]:
        bits |= inside[0]
    return bits


def _recorded_twice(flow: Flow) -> Iterator[Problem]:
    """Nodes that record metrics under the same name as an evaluation of other resources."""
    recorded: dict[object, list[PlanNode]] = {}
    for plan_node in flow.plan.nodes:
        parameter = plan_node.kind.records if plan_node.kind is not None else ""
        if not parameter:
            continue
        name = plan_node.parameters[parameter]
        before = recorded.setdefault(name, [])
        other = next((other for other in before if _evaluated(flow, other) != _evaluated(flow, plan_node)), None)
        before.append(plan_node)
        if other is not None:
            yield plan_node.scope.problem(
                "G307",
                f"nodes.{plan_node.node.name}",
                f"`{other.path}` and `{plan_node.path}` both record their metrics as `{name}/...`",
                f'give one of them another name, as in {plan_node.path}.{parameter} = "{name}_2"',
            )


def _evaluated(flow: Flow, plan_node: PlanNode) -> set[str]:
    """The resources that the nodes around one read."""
    nodes = flow.plan.nodes_in(plan_node.scope)
    return {name for each in nodes for _, target in (*each.reads, *each.setup_reads) for name in resources_of([target])}
