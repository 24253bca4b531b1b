"""Guard values known at each point of a flow, and which visits may change them.

A guard is a pure function of what it reads: asked again before that has changed, it answers the same. So an edge that
asks for another answer is never taken, and a node that is entered because it is due is due.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from graphtrain.kind import Kind
from graphtrain.language.syntax import Expression, FieldOf, Name, Operation, walk
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import FieldTarget, Scope, leaves
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
                    names |= _changers_of(plan, scope, leaf)
    return names


def changers_of_field(plan: Plan, scope: Scope, read: FieldOf) -> set[str]:
    """The nodes of a graph of which a visit may change a field; of one in a body, the node with that body."""
    return _changers_of(plan, scope, FieldTarget(f"{scope.path}{read.node}", read.field))


def _changers_of(plan: Plan, scope: Scope, target: FieldTarget) -> set[str]:
    """The nodes of a graph of which a visit may change a field of a node anywhere: here, in a body or around."""
    name, in_body, _ = target.node.removeprefix(scope.path).partition("/")
    is_here = target.node.startswith(scope.path)
    if is_here and in_body:
        return {name}
    planned, own = plan.by_path[target.node], {name} if is_here else set()
    kind = planned.kind
    if is_here and target.field in planned.expressions:
        return changers(plan, scope, planned.expressions[target.field].expression)
    if kind is None or target.field in kind.parameters:
        return own if kind is None else set()
    if kind.counter(target.field) is not None:  # the engine counts it, where the effects are
        return _nodes_that(scope, lambda kind: kind.has_effect("backward") or kind.has_effect("zero_grad"))
    if target.field != "due":  # nodes that hear of rows of metrics take something from them
        return own | (_nodes_that(scope, lambda kind: kind.may_record_rows) if kind.hears_rows else set())
    terms = [term for trigger in planned.triggers for term in plan.terms(planned.scope, trigger)]
    owners = [owner.path for owner, _, _ in terms if owner.path.startswith(scope.path)]
    # Of a unit that is counted in a body, the node with that body.
    names = {owner.removeprefix(scope.path).partition("/")[0] for owner in owners}
    if kind.trigger == "every":
        names |= own
    reads = [FieldTarget(target.node, field) for field in planned.also_due]
    if planned.trigger is not None and planned.trigger.at_end:
        asked = [part for part in walk(planned.scope.ending) if isinstance(part, FieldOf)]
        reads += [FieldTarget(f"{planned.scope.path}{part.node}", part.field) for part in asked]
    return names.union(*(_changers_of(plan, scope, read) for read in reads))


def _nodes_that(scope: Scope, is_one: Callable[[Kind], bool]) -> set[str]:
    """The nodes of some kinds, and those that may have one of them inside, or of which nothing is known."""
    return {
        name
        for name, node in scope.graph.nodes.items()
        if node.body is not None or (kind := scope.kinds[name]) is None or is_one(kind)
    }
