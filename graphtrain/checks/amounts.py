"""G505: amounts that have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from graphtrain.graph.closures import constant_value
from graphtrain.graph.elements import Problem
from graphtrain.graph.syntax import Constant, Expression, FieldOf, rebuilt, walk
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import show_value
from graphtrain.kind.trigger import Trigger
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import kind_at


def check_amounts(plan: Plan) -> Iterator[Problem]:
    """Every amount that ends nothing, or that is above the one at which its graph ends.

    Where another unit or guard may decide, there is no problem.
    """
    for finish in plan.nodes:
        if finish.kind.trigger != "after" or finish.trigger is None:
            continue
        after = finish.node.parameters.get("after")
        if after is not None and not finish.trigger.is_never and (finish.path, "due") not in plan.fields_read:
            name = finish.node.name
            message = f"no guard reads `{name}.due`, so {name}.after = {show_value(after)} ends nothing"
            hint = f'let the guard of an edge to "end" read it, or set {name}.after = "never"'
            yield finish.scope.problem("G505", f"nodes.{name}.after", message, hint)
        nodes, most = plan.nodes_in(finish.scope), _amounts(plan, finish, finish.trigger)
        guards = [edge.guard for node in nodes for edge in node.edges if edge.target is None and edge.guard is not None]
        for node in nodes if any(_ends(finish, guard) for guard in guards) else ():
            starts = _amounts(plan, finish, node.start) if node.start is not None else {}
            if starts and all(amount > most.get(read, amount) for read, amount in starts.items()):
                latest = f"`{finish.path}.after`, {finish.trigger}"
                message = f"`{node.path}` begins after the end: its `{FROM}`, {node.start}, is above {latest}"
                yield node.problem("G505", message, "lower the first, or raise the second")


def _ends(finish: PlanNode, guard: Expression) -> bool:
    """True if a guard holds once a node is due, apart from counts of windows."""

    def known(part: Expression, *, is_due: bool) -> Expression:
        fields = [each for each in walk(part) if isinstance(each, FieldOf)]
        kinds = [(kind_at(finish.scope, each.node), each.field) for each in fields]
        if part == FieldOf(finish.node.name, "due"):
            return Constant(is_due)
        if fields and all(kind and kind.counter(field) for kind, field in kinds):
            return Constant(True)
        return rebuilt(part, lambda operand: known(operand, is_due=is_due))

    return [constant_value(known(guard, is_due=is_due)) is True for is_due in (True, False)] == [True, False]


def _amounts(plan: Plan, node: PlanNode, trigger: Trigger) -> dict[FieldOf, Fraction]:
    """The amounts of a trigger, by the fields that count them; of several of one field the least."""
    amounts: dict[FieldOf, Fraction] = {}
    for owner, name, term in plan.terms(node.scope, trigger):
        read, amount = FieldOf(owner.path.removeprefix(node.scope.path), name), term.base.amount
        amounts[read] = min(amount, amounts.get(read, amount))
    return amounts
