"""G3xx: every slot is written before it is read: a forward analysis of what is written on all paths, and on some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphtrain.graph.elements import Problem
from graphtrain.language.syntax import Expression, FieldOf, Name, Operation
from graphtrain.names import quoted
from graphtrain.plan.flow import FlowPoint
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import resources_of, slots_of
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
        always, sometimes = _written_after(slots, point, written)
        after = always | slots.guards[point], sometimes
        return ((arrow.target, after) for arrow in (point.arrows if point is not until else ()))

    return solve({slots.flow.start: (0, 0)}, transfer, lambda one, other: (one[0] & other[0], one[1] | other[1]))


def _written_after(slots: Slots, point: FlowPoint, before: tuple[int, int]) -> tuple[int, int]:
    """What is written after a visit, on all paths and on some; the outputs of a body are those written inside."""
    use = slots.uses[point]
    always, sometimes = ((written & ~use.kills) | use.defines for written in before)
    for inner, outer in slots.body_outputs[point]:
        always &= -1 if before[0] & inner else ~outer
        sometimes &= -1 if before[1] & inner else ~outer
    return (always & ~use.maybe) | _needs(slots, point), sometimes


def _needs(slots: Slots, point: FlowPoint) -> int:
    """The slots that a visit needs, except outputs of a body, which may be absent: their readers are checked."""
    return 0 if slots.body_outputs[point] else slots.uses[point].requires


def check_data_flow(slots: Slots, before: Before) -> Iterator[Problem]:
    """Every slot that is read too early, and every name under which two evaluations record metrics."""
    plan = slots.flow.plan
    for plan_node in plan.nodes_in(plan.main):
        for slot in slots_of(ref for read, ref in plan_node.set_up_with if read.required):
            yield plan_node.problem(
                "G303",
                f"`{plan_node.path}` is set up with `{slot}` before the graph runs, and only the graph writes it",
                "let it read the slot when it is called, not in `setup`",
            )
    yield from _unwritten(slots, before)
    yield from _recorded_twice(plan)


def _unwritten(slots: Slots, before: Before) -> Iterator[Problem]:
    """The slots that nodes, or the guards on their edges, read too early, of all points of a node together."""
    readings: dict[tuple[str, bool], tuple[FlowPoint, int, int]] = {}
    for point in slots.flow.points:
        if point not in before or point.plan_node is None:
            continue
        always, _ = _written_after(slots, point, before[point])
        for by_guard, read, written in (
            (False, _needs(slots, point), before[point][0]),
            (True, slots.guards[point], always),
        ):
            if read:
                first, missed, never = readings.get((point.path, by_guard), (point, 0, -1))
                now = read & ~written
                never &= _unwritten_at_first(slots, point, by_guard) if now else 0
                readings[point.path, by_guard] = first if missed or not now else point, missed | now, never
    for (_, by_guard), (point, missed, never) in readings.items():
        for bits, at_first in ((missed & never, True), (missed & ~never, False)):
            if bits:
                yield _missed(slots, point, bits, by_guard, at_first)


def _unwritten_at_first(slots: Slots, point: FlowPoint, by_guard: bool) -> int:
    """The slots that nothing has written at the first visit, without those that it may not read: `x > 9 and slot`."""
    assert point.plan_node is not None
    before = written_before(slots, point)[point]
    _, written = _written_after(slots, point, before) if by_guard else before
    refs = [ref for _, ref in point.plan_node.visit_reads if ref.kind == "expression"]
    expressions = [(ref.scope, ref.expression) for ref in refs if ref.scope is not None]
    if by_guard:
        expressions = [(point.scope, Operation("or", tuple(point.guards)))]
    read = slots.bits(slots_of(ref for scope, each in expressions for ref in scope.read_in(each)))
    first = ((scope, name) for scope, each in expressions for name in _evaluated_first(each))
    return ~written & (~read | slots.bits(slots_of(ref for scope, name in first for ref in scope.read_in(name))))


def _evaluated_first(expression: Expression) -> Iterator[Expression]:
    """The names that an expression reads whatever they hold: `and`, `or` and `if` may not evaluate what follows."""
    match expression:
        case Operation("and" | "or" | "if", (first, *_)):
            yield from _evaluated_first(first)
        case Operation(_, operands):
            for operand in operands:
                yield from _evaluated_first(operand)
        case Name() | FieldOf():
            yield expression


def _missed(slots: Slots, point: FlowPoint, bits: int, by_guard: bool, at_first: bool) -> Problem:
    writing = quoted(dict.fromkeys(each.path for each in slots.flow.points if slots.uses[each].defines & bits))
    verb = "sets its nodes up with" if point.opens is not None else "reads"
    reader = f"a guard on an edge leaving `{point.path}` reads" if by_guard else f"`{point.path}` {verb}"
    when = "before its first visit" if at_first else "on every path"
    instead = "move the edge to where it is written" if by_guard else "give the read a default (`= None`)"
    return point.problem(
        "G303" if at_first else "G304",
        f"{reader} {quoted(slots.named(bits))}, which is not written {when}: {writing} writes it",
        f"route every path through {writing} first, or {instead}",
        thing="edges" if by_guard else "nodes",
        severity="error" if at_first else "warning",
    )


def _recorded_twice(plan: Plan) -> Iterator[Problem]:
    """Nodes that record metrics under the same name as an evaluation of other resources."""
    recorded: dict[object, tuple[PlanNode, set[str]]] = {}
    for plan_node in plan.nodes:
        if parameter := plan_node.kind.records:
            around = [pair for each in plan.nodes_in(plan_node.scope) for pair in (*each.reads, *each.setup_reads)]
            evaluated = set(resources_of(ref for _, ref in around))
            name = plan_node.parameters[parameter]
            other, resources = recorded.setdefault(name, (plan_node, evaluated))
            if resources != evaluated:
                yield plan_node.problem(
                    "G307",
                    f"`{other.path}` and `{plan_node.path}` both record their metrics as `{name}/...`",
                    f'give one of them another name, as in {plan_node.path}.{parameter} = "{name}_2"',
                )
