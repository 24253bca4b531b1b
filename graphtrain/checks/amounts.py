"""G504, G505: amounts that nothing reads, or that exclude each other: a minimum above the maximum."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from graphtrain.graph.elements import Problem
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import show_value
from graphtrain.kind.trigger import Trigger
from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation, walk
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import kind_at

_AT_LEAST = {">=": (0, 1), ">": (0, 1), "<=": (1, 0), "<": (1, 0)}  # what is at least what, among two operands


def check_amounts(plan: Plan) -> Iterator[Problem]:
    """Every amount that ends nothing, or that comes after the one at which its graph ends; silent where another unit or
    guard may decide.
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
        guards = [way.guard for node in nodes for way in node.exits if way.target is None and way.guard is not None]
        latest = f"`{finish.path}.after`, {finish.trigger}"
        for part in (part for guard in guards for part in _conditions(guard) if _ends(finish, guard, part)):
            for read, bound in _minimum(plan, finish, part):
                if bound > most.get(read, bound):
                    message = f"the end needs `{read.node}.{read.field}` of at least {bound:g}, more than {latest}"
                    yield finish.problem("G504", message, "lower the minimum, or raise the maximum")
        for node in nodes if any(_ends(finish, guard) for guard in guards) else ():
            starts = _amounts(plan, finish, node.start) if node.start is not None else {}
            if starts and all(amount > most.get(read, amount) for read, amount in starts.items()):
                message = f"`{node.path}` begins after the end: its `{FROM}`, {node.start}, is above {latest}"
                yield node.problem("G505", message, "lower the first, or raise the second")


def _conditions(guard: Expression) -> Iterator[Expression]:
    """The parts of a guard that are joined by `and` and `or`."""
    if isinstance(guard, Operation) and guard.name in ("and", "or"):
        for operand in guard.operands:
            yield from _conditions(operand)
    else:
        yield guard


def _ends(finish: PlanNode, guard: Expression, minimum: Expression | None = None) -> bool:
    """True if a guard holds once a node is due, but for a minimum and an open window."""
    match guard:
        case Operation("or", operands):
            return any(_ends(finish, operand, minimum) for operand in operands)
        case Operation("and", operands):
            others = [operand for operand in operands if not _ends(finish, operand, minimum)]
            read = [part for each in others if each is not minimum for part in walk(each)]
            return len(others) < len(operands) and all(_is_of_window(finish, part) for part in read)
    return guard == FieldOf(finish.node.name, "due")


def _is_of_window(finish: PlanNode, part: Expression) -> bool:
    """True for a count of backward passes, and for what reads nothing."""
    if not isinstance(part, FieldOf):
        return not isinstance(part, Name)
    kind = kind_at(finish.scope, part.node)
    return kind is not None and kind.counter(part.field) is not None


def _minimum(plan: Plan, finish: PlanNode, part: Expression) -> Iterator[tuple[FieldOf, float]]:
    """The field that a comparison bounds from below, and the bound: a number or a parameter."""
    if isinstance(part, Operation) and part.name in _AT_LEAST:
        read, bound = (part.operands[index] for index in _AT_LEAST[part.name])
        value = bound.value if isinstance(bound, Constant) else None
        if isinstance(bound, FieldOf) and (owner := plan.by_path.get(f"{finish.scope.path}{bound.node}")) is not None:
            value = owner.parameters.get(bound.field) if bound.field not in owner.expressions else None
        if isinstance(read, FieldOf) and isinstance(value, int | float):
            yield read, value


def _amounts(plan: Plan, node: PlanNode, trigger: Trigger) -> dict[FieldOf, Fraction]:
    """The amounts of a trigger, by the fields that count them."""
    terms = plan.terms(node.scope, trigger)
    return {FieldOf(owner.path.removeprefix(node.scope.path), name): term.base.amount for owner, name, term in terms}
