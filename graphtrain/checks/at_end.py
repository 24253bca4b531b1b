"""What ``every = "end"`` asks of a graph: its end is asked for by guards, of fields, that do not wait for the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphtrain.graph.elements import END, Node
from graphtrain.graph.problem import Problem
from graphtrain.kind.trigger import AT_END, Trigger
from graphtrain.language.syntax import Expression, FieldOf, Name, walk
from graphtrain.plan.scope import ExpressionTarget, Scope


def check_at_end(scope: Scope) -> Iterator[Problem]:
    """Every node of one graph that is to be due at an end of which nobody can tell that it comes."""
    due_then = {name: node for name, node in scope.graph.nodes.items() if _is_due_at_end(scope, node)}
    edges = [(name, edge) for name, leaving in scope.graph.edges.items() for edge in leaving if edge.target == END]
    unguarded = next((name for name, edge in edges if edge.when is None), None)
    for name in due_then:
        thing, asked = f"nodes.{name}.every", f'{name}.every = "{AT_END}"'
        if unguarded is not None or not edges:
            yield scope.problem(
                "G104",
                thing,
                f'{asked}: the edge from `{unguarded}` to "end" has no guard, so nothing tells that the end is coming',
                f'guard the edge, as `finish` of the graph `fit` does; or put `{name}` before "end" instead',
            )
        elif slots := [part.name for part in walk(scope.ending) if isinstance(part, Name)]:
            yield scope.problem(
                "G104",
                thing,
                f"{asked}: what asks for the end reads `{slots[0]}`, which may have no value where `{name}` asks",
                "let it read a field of a node, such as `agree.value`",
            )
        elif waited_for := _waited_for(scope, scope.ending, due_then):
            yield scope.problem(
                "G207",
                thing,
                f"{asked}: the end waits for `{waited_for}.due`, and `{waited_for}` for the end",
                f"let the guard of the end read something else, such as {waited_for}.runs",
            )


def _is_due_at_end(scope: Scope, node: Node) -> bool:
    kind = scope.kinds[node.name]
    if kind is None or kind.trigger != "every":
        return False
    parameter = kind.parameters["every"]
    trigger = parameter.coerce(node.parameters.get("every", parameter.default))
    return isinstance(trigger, Trigger) and trigger.at_end


def _waited_for(scope: Scope, expression: Expression, names: Mapping[str, Node]) -> str | None:
    """The first of some nodes for whose `due` an expression asks, itself or by a parameter that is another one."""
    for part in walk(expression):
        if isinstance(part, FieldOf):
            if part.field == "due" and part.node in names:
                return part.node
            target = scope.field(part.node, part.field)
            if isinstance(target, ExpressionTarget) and "/" not in part.node:
                waited_for = _waited_for(scope, target.expression, names)
                if waited_for is not None:
                    return waited_for
    return None
