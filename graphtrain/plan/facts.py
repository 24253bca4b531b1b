"""Guard values known at each point of a flow, and which visits may change them.

A guard is a pure function of what it reads: asked again before that has changed, it answers the same. So an edge that
asks for another answer is never taken, and a node that is entered because it is due is due.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphtrain.guards.syntax import Expression, FieldOf, Name, Operation, walk
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import ExpressionTarget, FieldTarget, Scope, leaves
from graphtrain.plan.solve import solve

if TYPE_CHECKING:
    from graphtrain.plan.flow import FlowEdge, FlowPoint


class KnownAnswers:
    """Guard values known at each point of one graph, each one bit of a number.

    Arguments:
        points: of the graph, without those in bodies; `start` is where it is entered.
    """

    def __init__(self, plan: Plan, scope: Scope, points: list[FlowPoint], start: FlowPoint) -> None:
        self._bits: dict[tuple[Expression, bool], int] = {}
        inside = set(points)
        # Of each arrow: what is known once it is taken, and what may not be known before it for it to be taken.
        answers: dict[FlowEdge, int] = {}
        self._against: dict[FlowEdge, int] = {}
        for point in points:
            self._ask(point, answers)
        answered: dict[Expression, int] = {}
        for (expression, _), bit in self._bits.items():
            answered[expression] = answered.get(expression, 0) | bit
        changed: dict[str, int] = {}
        for expression, bits in answered.items():
            for name in changers(plan, scope, expression):
                changed[name] = changed.get(name, 0) | bits
        everything = (1 << len(self._bits)) - 1
        left = {point.node.name: point for point in points if point.acts and point.node is not None}
        self.after: dict[FlowEdge, int] = {}

        def transfer(point: FlowPoint, known: int) -> Iterator[tuple[FlowPoint, int]]:
            assert point.node is not None
            lost = everything if point.is_unknown else changed.get(point.node.name, 0) if point.acts else 0
            kept = known & ~lost
            if point.opens is not None:  # what happens in a body changes nothing out here before it is left
                yield left[point.node.name], kept
                return
            for arrow in point.arrows:
                self.after[arrow] = kept | answers[arrow]
                if arrow.target in inside:
                    yield arrow.target, self.after[arrow]

        solve({start: 0}, transfer, operator.and_)

    def _bit(self, expression: Expression, holds: bool) -> int:
        return self._bits.setdefault((expression, holds), 1 << len(self._bits))

    def _ask(self, point: FlowPoint, answers: dict[FlowEdge, int]) -> None:
        """Note what the arrows of a point ask; what failed before one is where what failed before the next begins."""
        count = failed = held = 0
        for arrow in point.arrows:
            for guard in arrow.failed[count:]:
                failed |= self._bit(guard, False)
                held |= self._bit(guard, True)
            count = len(arrow.failed)
            answers[arrow], self._against[arrow] = failed, held
            if arrow.guard is not None:
                for part in (arrow.guard, *conjuncts(arrow.guard)):
                    answers[arrow] |= self._bit(part, True)
                self._against[arrow] |= self._bit(arrow.guard, False)

    def is_open(self, arrow: FlowEdge) -> bool:
        """False for an arrow that asks for an answer other than the one that is known."""
        return not self.after.get(arrow, 0) & self._against[arrow]

    def is_due(self, arrow: FlowEdge, name: str) -> bool:
        """True if a node is due where an arrow has led."""
        return bool(self.after.get(arrow, 0) & self._bits.get((FieldOf(name, "due"), True), 0))


def conjuncts(expression: Expression) -> Iterator[Expression]:
    """The parts of which all must hold."""
    if isinstance(expression, Operation) and expression.name == "and":
        for operand in expression.operands:
            yield from conjuncts(operand)
    else:
        yield expression


def changers(plan: Plan, scope: Scope, guard: Expression) -> set[str]:
    """The nodes of a graph of which a visit may change what a guard reads."""
    names: set[str] = set()
    for part in walk(guard):
        if isinstance(part, FieldOf):
            names |= changers_of_field(plan, scope, part)
        elif isinstance(part, Name):
            names |= {name for name, node in scope.graph.nodes.items() if part.name in scope.written_by(node)}
            for leaf in leaves(scope.resolve(part.name)):
                if isinstance(leaf, FieldTarget):  # handed in by the graph around this one
                    names |= _changers_inside(plan, scope, leaf)
    return names


def _changers_inside(plan: Plan, scope: Scope, target: FieldTarget) -> set[str]:
    """The nodes of a body of which a visit may change a field of a node anywhere."""
    if target.node.startswith(scope.path):
        return changers_of_field(plan, scope, FieldOf(target.node.removeprefix(scope.path), target.field))
    planned = plan.by_path[target.node]
    if planned.kind is None:
        return set()
    if planned.kind.counter(target.field) is not None:
        return _counting(scope)
    names = row_recorders(scope) if planned.kind.hears_rows else set()
    if target.field == "due":
        terms = plan.terms(planned.scope, planned.trigger) if planned.trigger is not None else []
        owners = [owner.path for owner, _, _ in terms if owner.path.startswith(scope.path)]
        names |= {owner.removeprefix(scope.path).partition("/")[0] for owner in owners}
        for read in _fields_of_end(planned):
            names |= _changers_inside(plan, scope, FieldTarget(f"{planned.scope.path}{read.node}", read.field))
        for field in planned.also_due:
            names |= _changers_inside(plan, scope, FieldTarget(target.node, field))
    return names


def changers_of_field(plan: Plan, scope: Scope, read: FieldOf) -> set[str]:
    """The nodes of a graph of which a visit may change a field; of one in a body, the node with that body."""
    outer, slash, _ = read.node.partition("/")
    if slash:
        return {outer}
    target = scope.field(read.node, read.field)
    if isinstance(target, ExpressionTarget):
        return changers(plan, scope, target.expression)
    kind = scope.kinds[read.node]
    if kind is None:
        return {read.node}
    if read.field in kind.parameters:
        return set()
    if kind.counter(read.field) is not None:  # the engine counts it, where the effects are
        return _counting(scope)
    if read.field != "due":
        return {read.node} | (row_recorders(scope) if kind.hears_rows else set())
    return changers_of_due(plan, scope, read.node)


def changers_of_due(plan: Plan, scope: Scope, name: str) -> set[str]:
    """The nodes of which a visit may make a node due, or not due any more."""
    kind = scope.kinds[name]
    assert kind is not None, "a node of an unknown kind may do anything"
    names = clock_owners(plan, scope, name)
    if kind.trigger == "every":
        names.add(name)
    planned = plan.by_path[f"{scope.path}{name}"]
    for read in (*(FieldOf(name, field) for field in planned.also_due), *_fields_of_end(planned)):
        names |= changers_of_field(plan, scope, read)
    return names


def _fields_of_end(planned: PlanNode) -> list[FieldOf]:
    """The fields that ask for the end of its graph, of a node that is due then."""
    if planned.trigger is None or not planned.trigger.at_end:
        return []
    return [part for part in walk(planned.scope.ending) if isinstance(part, FieldOf)]


def row_recorders(scope: Scope) -> set[str]:
    """The nodes that may record a row of metrics, which nodes that hear of rows take something from."""
    return {
        name
        for name, node in scope.graph.nodes.items()
        if node.body is not None or (kind := scope.kinds[name]) is None or kind.may_record_rows
    }


def _counting(scope: Scope) -> set[str]:
    """The nodes that may run backward, or clear gradients."""
    return {
        name
        for name, node in scope.graph.nodes.items()
        if node.body is not None
        or (kind := scope.kinds[name]) is None
        or kind.has_effect("backward")
        or kind.has_effect("zero_grad")
    }


def clock_owners(plan: Plan, scope: Scope, name: str) -> set[str]:
    """The nodes that count the units of a node's trigger."""
    triggers = plan.by_path[f"{scope.path}{name}"].triggers
    counters = [owner for trigger in triggers for owner, _, _ in plan.terms(scope, trigger)]
    # Of a unit that is counted in a body, the node with that body.
    return {owner.path.removeprefix(scope.path).partition("/")[0] for owner in counters}
