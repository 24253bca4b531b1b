"""G2xx of the expressions that nodes read: names and types, and cycles."""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.checks.guards import ExpressionFault, ValueTypeError, name_faults, type_of
from graphtrain.graph.elements import Node, Problem
from graphtrain.kind import Kind
from graphtrain.language.syntax import (
    GuardCycleError,
    GuardSyntaxError,
    is_expression,
)
from graphtrain.plan.scope import Ref, Scope, ValueType, value_type


def check_expressions(scope: Scope) -> Iterator[Problem]:
    """Every problem of the expressions that the nodes of one graph read."""
    targets: list[tuple[Node, str, Ref]] = []
    is_sound = True
    for node in scope.graph.nodes.values():
        kind = scope.kinds[node.name]
        if kind is None:
            continue
        for name, text in node.reads.items():
            is_parameter = node.body is None and name in kind.parameters and name not in kind.slots
            if is_parameter and (problem := _cannot_vary(scope, node, kind, name)) is not None:
                is_sound = False
                yield problem
            elif isinstance(text, str) and (is_parameter or is_expression(text)):
                target = scope.parameter(node, name) if is_parameter else scope.resolve(text, f"{node.name}.{name}")
                problems = list(_faults(scope, node, name, target))
                is_sound = is_sound and not problems
                targets.append((node, name, target))
                yield from problems
    if is_sound and targets:
        yield from _cycles(scope, targets)


def _cannot_vary(scope: Scope, node: Node, kind: Kind, name: str) -> Problem | None:
    """The problem of a parameter that cannot have an expression, if it cannot."""
    if name in kind.varying and name not in node.parameters and isinstance(node.reads[name], str):
        return None
    varying = ", ".join(other for other in kind.varying if other in kind.parameters) or "none"
    message = f"`{node.name}.{name}` cannot be given an expression: it is read once, has a value, or is a list"
    hint = f"the parameters of `{kind.name}` that are read at every visit: {varying}"
    return scope.problem("G211", f"nodes.{node.name}.reads.{name}", message, hint)


def _problem(scope: Scope, node: Node, name: str, code: str, message: str, hint: str = "") -> Problem:
    text = node.reads[name]
    shown = text if len(text) <= 120 else f"{text[:117]}..."
    where = f"nodes.{node.name}.reads.{name}"
    return scope.problem(code, where, f'{node.name}.{name}: {message}\n    {name} = "{shown}"', hint)


def _faults(scope: Scope, node: Node, name: str, target: Ref) -> Iterator[Problem]:
    """The problems of an expression by itself: its text, its names, its types."""
    try:
        parsed = scope.parse(target.text)
    except GuardSyntaxError as error:
        if target.parameter is None and "not an expression" in str(error):
            message = f"`{target.text}` is not a valid name for a slot"
            thing = f"nodes.{node.name}.reads.{name}"
            yield scope.problem("G115", thing, message, "nor is it a field (`node.field`) or an expression")
        else:
            yield _problem(scope, node, name, "G201", str(error))
        return
    faults = [*name_faults(scope, target.text, parsed)]
    if not faults:
        try:
            faults += _type_faults(target, type_of(scope, parsed, scope.graph.guards))
        except ValueTypeError as error:
            faults.append(ExpressionFault("G204", str(error), error.hint))
    for fault in faults:
        yield _problem(scope, node, name, *fault)


def _type_faults(target: Ref, received: ValueType) -> list[ExpressionFault]:
    if target.parameter is None or received == "unknown":
        return []
    wanted = value_type(target.parameter.annotation)
    if received == wanted or wanted == "unknown" or (received, wanted) == ("integer", "number"):
        return []
    hint = "write `//`, or round with `floor` or `ceil`" if (received, wanted) == ("number", "integer") else ""
    article = "an" if received == "integer" else "a"
    message = f"expected {target.parameter.type_name}, and the expression is {article} {received}"
    return [ExpressionFault("G204", message, hint)]


# ---- cycles


def _cycles(scope: Scope, targets: list[tuple[Node, str, Ref]]) -> Iterator[Problem]:
    circles: set[frozenset[str]] = set()  # each is reported once, at its first expression
    for node, name, target in targets:
        try:
            circle = _circle(target, (target.name,))
        except (GuardSyntaxError, GuardCycleError):  # a faulty guard is reported at the guard
            continue
        if target.name in circle and frozenset(circle) not in circles:
            circles.add(frozenset(circle))
            yield _problem(scope, node, name, "G207", f"defined in terms of itself: {' -> '.join(circle)}")


def _circle(target: Ref, path: tuple[str, ...]) -> tuple[str, ...]:
    """The names on a path from an expression into a cycle; empty if there is none."""
    for inner in target.reads():
        if inner.kind == "expression":
            if inner.name in path:
                return (*path[path.index(inner.name) :], inner.name)
            if further := _circle(inner, (*path, inner.name)):
                return further
    return ()
