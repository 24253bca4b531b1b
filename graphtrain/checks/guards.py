"""G2xx: guards and expressions parse; their names and fields exist, with the right types.

No guard is constant, repeated, unused, or defined in terms of itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import networkx

from graphtrain.checks.cycles import cycles
from graphtrain.graph.closures import COMPARISONS, constant_value
from graphtrain.graph.elements import Edge, Problem, Severity, nodes_of
from graphtrain.graph.syntax import (
    FUNCTIONS,
    Constant,
    Expression,
    FieldOf,
    GuardSyntaxError,
    Name,
    is_expression,
    walk,
)
from graphtrain.kind.parameter import Parameter, known_mode
from graphtrain.names import suggestion
from graphtrain.plan.scope import Ref, Scope, ValueType, field_type, node_at, readable_fields, resources_of, value_type
from graphtrain.printable import one_line

# How to let a metric or the loss decide, which expressions cannot read.
METRIC_HINT = (
    'the overlay `early_stop` ends a run by a metric (early_stop.monitor = "val/loss"); a step function ends it with '
    "`return loss, graphtrain.STOP`; for anything else, let a node of yours write a Python number, as float(loss)"
)


def check_expressions(scope: Scope) -> Iterator[Problem]:
    """Every problem of a guard, or of an expression that a node reads, in one graph."""
    for node in scope.graph.nodes.values():
        kind = scope.kinds[node.name]
        for name in scope.expressions(node):
            assert kind is not None, "it has a parameter"
            if name not in kind.varying or name in node.parameters or not isinstance(node.reads[name], str):
                varying = ", ".join(other for other in kind.varying if other in kind.parameters) or "none"
                message = f"`{node.name}.{name}` cannot be given an expression: it is read once, has a value, or is a"
                hint = f"parameters of `{kind.name}` that can be expressions: {varying}"
                yield scope.problem("G211", f"nodes.{node.name}.reads.{name}", f"{message} list", hint)
    for ref in _expressions(scope):
        yield from _problems(ref)
        if ref.parameter is _GUARD and (name := ref.name.removeprefix(scope.path)) in _slots(scope):
            yield _problem(ref, "G208", f"a slot has the same name, `{name}`", "rename the guard")


_GUARD = Parameter("when", bool)


def _expressions(scope: Scope) -> Iterator[Ref]:
    """The guards of a graph, and the expressions that its nodes read."""
    for name, text in scope.graph.guards.items():
        yield Ref("expression", scope.path, f"{scope.path}{name}", text=text, scope=scope, parameter=_GUARD)
    for node in scope.graph.nodes.values():
        for name, target in node.reads.items():
            if isinstance(target, str) and name in scope.expressions(node):
                yield scope.expressions(node)[name]
            elif isinstance(target, str) and is_expression(target):
                yield scope.resolve(target, f"{scope.path}{node.name}.{name}")


def _problem(ref: Ref, code: str, message: str, hint: str = "", severity: Severity = "error") -> Problem:
    """A problem of a guard or an expression."""
    assert ref.scope is not None, "it is an expression"
    name = ref.name.removeprefix(ref.path)
    node, _, slot = name.rpartition(".")
    where = f"nodes.{node}.reads.{slot}" if node else f"guards.{name}"
    title = name if node else f"guard `{name}`"
    message = f'{title}: {message}\n    {slot} = "{one_line(ref.text, 120)}"'
    return ref.scope.problem(code, where, message, hint, severity=severity)


def _problems(ref: Ref) -> Iterator[Problem]:
    """The problem of the syntax of an expression, else the problems of its names, else that of its types."""
    scope, parameter = ref.scope, ref.parameter
    assert scope is not None, "it is an expression"
    try:
        expression = scope.parse(ref.text)
        faults = [*_name_faults(scope, ref.text, expression)]
        received = type_of(scope, expression) if not faults else "unknown"
        wanted = value_type(parameter.annotation) if parameter is not None else "unknown"
        word = _TAKEN_AS.get(received, received)
        if parameter is not None and "unknown" not in (received, wanted) and wanted not in (received, word):
            article = "an" if received == "integer" else "a"
            message = f"expected {parameter.type_name}, but the expression is {article} {received}"
            faults = [("G204", message, _HINTS.get((word, wanted), ""))]
    except GuardSyntaxError as error:
        faults = [("G201", str(error), "")]
    except ValueTypeError as error:
        faults = [("G204", str(error), error.hint)]
    for fault in faults:
        yield _problem(ref, *fault)


_TAKEN_AS: dict[ValueType, ValueType] = {"integer": "number"}
_HINTS = {
    ("number", "boolean"): "compare the number with something, as in `> 0`",
    ("number", "integer"): "write `//`, or round with `floor` or `ceil`",
}


# ---- names


def _name_faults(scope: Scope, text: str, expression: Expression) -> Iterator[tuple[str, str, str]]:
    """Every undefined name in an expression: a code, a message and a hint."""
    # A node of an unknown kind might write any slot.
    is_known = all(None not in around.kinds.values() for around in scope.around)
    for part in walk(expression):
        if isinstance(part, Name) and part.name not in scope.graph.guards and is_known:
            name = part.name
            if name not in _slots(scope):
                yield "G202", f"unknown name `{name}`", _meant(scope, name, text)
            elif any(resources_of([scope.resolve(name)])):
                message = f"no node writes a slot `{name}`: expressions read slots and fields, not resources"
                yield "G202", message, suggestion(name, {*scope.written, *scope.graph.guards})
        elif isinstance(part, FieldOf):
            yield from field_faults(scope, part.node, part.field, ("G202", "G203"))
            sort = field_type(scope, part.node, part.field)
            if sort in ("trigger", "other"):
                hint = f"read `{part.node}.due`" if sort == "trigger" else ""
                yield "G204", f"`{part.node}.{part.field}` is not a number, text or truth value", hint


def _meant(scope: Scope, name: str, text: str) -> str:
    """A hint for an unknown name in an expression."""
    if name in scope.graph.nodes:
        return f"`{name}` is a node; read one of its fields: {', '.join(readable_fields(scope, name))}"
    if (counter := scope.graph.units.get(name) or scope.graph.units.get(f"{name}s")) is not None:
        return f"it is a unit of the clock: read `{counter}`"
    if known_mode(name) is not None or f"{name}/" in text:
        return METRIC_HINT
    return suggestion(name, [*scope.graph.guards, *_slots(scope)])


def _slots(scope: Scope) -> set[str]:
    """The slots that nodes write or read, in this graph and those around it."""
    return set[str]().union(*[around.written | around.read for around in scope.around])


def field_faults(scope: Scope, node: str, field: str, codes: tuple[str, str]) -> Iterator[tuple[str, str, str]]:
    """The fault of a field that does not exist; `codes`: that of a missing node, and that of a missing field."""
    if node_at(scope, node) is None:
        yield codes[0], f"unknown node `{node}` in `{node}.{field}`", suggestion(node, nodes_of(scope.graph))
    elif field_type(scope, node, field) is None:
        yield codes[1], f"`{node}` has no field `{field}`", suggestion(field, readable_fields(scope, node))


# ---- types


class ValueTypeError(Exception):
    """Types in an expression that do not match."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def type_of(scope: Scope, expression: Expression) -> ValueType:
    """The type of an expression whose names are known to exist.

    Raises:
        ValueTypeError: types in it do not match.
    """
    match expression:
        case Constant(value):
            return value_type(type(value))
        case Name(name):
            return "boolean" if name in scope.graph.guards else "unknown"
        case FieldOf(node, field):
            return field_type(scope, node, field) or "unknown"
    name, exact = expression.name, [type_of(scope, operand) for operand in expression.operands]
    types = [_TAKEN_AS.get(received, received) for received in exact]
    takes: ValueType = "boolean" if name in ("not", "and", "or", "if") else "number"
    if name not in COMPARISONS:
        for received in types[:1] if name == "if" else types:
            if received not in (takes, "unknown"):
                raise ValueTypeError(f"`{name}` takes a {takes}, not a {received}", _HINTS.get((received, takes), ""))
    alike = types[1:] if name == "if" else types
    if "unknown" not in alike and len({*alike}) > 1:
        raise ValueTypeError(f"`{name}` takes values of one type, not a {alike[0]} and a {alike[1]}")
    if name in COMPARISONS:
        if name not in ("==", "!=") and {*types} & {"boolean", "string"}:
            raise ValueTypeError(f"`{name}` compares numbers, not a {types[0]} and a {types[1]}")
        return "boolean"
    if name in ("floor", "ceil"):
        return "integer"
    if name == "/" or name in FUNCTIONS.keys() - {"abs", "min", "max"}:
        return "number"
    result = {*(exact[1:] if name == "if" else exact)}
    return "unknown" if "unknown" in result else result.pop() if len(result) == 1 else "number"


# ---- guards together, once names and types of all graphs have no errors


def check_guards(main: Scope) -> Iterator[Problem]:
    """Every guard, also in nested graphs, that is defined in terms of itself, constant, repeated, or unused."""
    refs = {ref.name: ref for scope in main.with_inner() for ref in _expressions(scope)}
    paths = list(cycles(networkx.DiGraph({name: list(_named(ref)) for name, ref in refs.items()}), refs))
    for path in paths:
        yield _problem(refs[path[0]], "G207", f"defined in terms of itself: {' -> '.join(path)}")
    for scope in main.with_inner() if not paths else ():
        yield from _of_scope(scope)


def _named(ref: Ref) -> Iterator[str]:
    """The names of the guards and expressions that an expression names."""
    assert ref.scope is not None, "it is an expression"
    for part in walk(ref.scope.parse(ref.text)):
        if isinstance(part, Name) and part.name in ref.scope.graph.guards:
            yield f"{ref.path}{part.name}"
        elif isinstance(part, Name | FieldOf):
            read = next(ref.scope.read_in(part))
            yield from [each.name for each in (read, *read.parts) if each.category == "expression"]


def _of_scope(scope: Scope) -> Iterator[Problem]:
    parsed = [scope.parse(ref.text) for ref in _expressions(scope)]
    named = {part.name for expression in parsed for part in walk(expression) if isinstance(part, Name)}
    used = {edge.when for leaving in scope.graph.edges.values() for edge in leaving} | named
    for ref in _expressions(scope):
        if ref.parameter is not _GUARD:
            continue
        name = ref.name.removeprefix(scope.path)
        if (constant := constant_value(scope.guards[name])) is not None:
            hint = "an edge that is always taken needs no guard; an edge that is never taken can be removed"
            yield _problem(ref, "G205", f"is always {str(constant).lower()}", hint)
        if name not in used:
            yield _problem(ref, "G209", "no edge and no expression names it", severity="warning")
    for source, leaving in scope.graph.edges.items():
        first: dict[Expression, Edge] = {}
        for edge in leaving:
            if edge.when is not None and (same := first.setdefault(scope.guards[edge.when], edge)) is not edge:
                message = f'"{edge}" is never taken: "{same}" is evaluated before it and has the same guard'
                yield scope.problem("G206", f"edges.{source}", message)
