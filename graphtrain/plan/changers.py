"""Which nodes may change what a guard reads."""

from __future__ import annotations

from collections.abc import Callable

from graphtrain.graph.syntax import Expression, FieldOf, Name, walk
from graphtrain.kind import Kind
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import Ref, Scope


def changers(plan: Plan, scope: Scope, guard: Expression) -> set[str]:
    """The names of the nodes in a graph whose visits may change the value of a guard. A body counts as its node."""
    names: set[str] = set()
    for part in walk(guard):
        if isinstance(part, FieldOf):
            names |= _changers_of(plan, scope, Ref("field", f"{scope.path}{part.node}", part.field))
        elif isinstance(part, Name):
            names |= {name for name, node in scope.graph.nodes.items() if part.name in scope.written_by(node)}
            for ref in scope.resolve(part.name).simple():
                if ref.category == "field":  # passed in by the enclosing graph
                    names |= _changers_of(plan, scope, ref)
    return names


def _changers_of(plan: Plan, scope: Scope, field: Ref) -> set[str]:
    """The same for a field of any node: of this graph, of a body or of an enclosing graph."""
    name, in_body, _ = field.path.removeprefix(scope.path).partition("/")
    is_here = field.path.startswith(scope.path)
    if is_here and in_body:
        return {name}
    plan_node = plan.by_path[field.path]
    owner = {name} if is_here else set()
    kind = plan_node.kind
    if is_here and field.name in plan_node.expressions:
        return changers(plan, scope, plan_node.expressions[field.name].expression)
    if field.name in kind.parameters:
        return set()
    if (counter := kind.counter(field.name)) is not None:  # the engine counts it, at nodes with these effects
        effects = {"backward"} if field.name == counter.window else {"backward", "zero_grad"}
        return _nodes_that(scope, lambda kind: not kind.does.isdisjoint(effects))
    if field.name != "due":  # `on_metrics` may change it, wherever a row is recorded
        return owner | (_nodes_that(scope, lambda kind: kind.may_record_rows) if kind.has("on_metrics") else set())
    names = owner if kind.trigger == "every" else set()
    return names.union(*(_changers_of(plan, scope, read) for read in plan.due_by(plan_node)))


def _nodes_that(scope: Scope, is_one: Callable[[Kind], bool]) -> set[str]:
    """The names of the nodes whose kind satisfies a condition, and of all nodes with a body, which may have one."""
    nodes = scope.graph.nodes.items()
    return {name for name, node in nodes if node.body is not None or ((kind := scope.kinds[name]) and is_one(kind))}
