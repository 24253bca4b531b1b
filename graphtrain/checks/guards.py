"""G2xx: guards parse, their names and fields exist and have the right types, none is constant or repeated."""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.graph.problem import Problem
from graphtrain.guards.evaluate import constant_value
from graphtrain.guards.syntax import (
    Arithmetic,
    Both,
    Comparison,
    Constant,
    Either,
    Expression,
    FieldOf,
    GuardCycleError,
    GuardSyntaxError,
    Name,
    Negative,
    Not,
    expand,
    parse,
    walk,
)
from graphtrain.names import suggestion
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import Scope, ValueType


def check_guards(scope: Scope) -> Iterator[Problem]:
    """Every problem of the guards of one graph."""
    guards: dict[str, Expression] = {}
    for name, text in scope.graph.guards.items():
        try:
            guards[name] = parse(text)
        except GuardSyntaxError as error:
            yield _problem(scope, "G201", name, str(error))
    used = {edge.when for leaving in scope.graph.edges.values() for edge in leaving}
    expanded: dict[str, Expression] = {}
    circles: set[frozenset[str]] = set()  # each is reported once, at its first guard
    too_large: set[str] = set()  # and of guards that name each other, the first that is too large
    for name, expression in guards.items():
        problems = list(_guard(scope, name, expression, guards))
        try:
            whole = expand(expression, guards, (name,))
        except GuardCycleError as error:
            if name in error.path and frozenset(error.path) not in circles:
                yield _problem(scope, "G207", name, f"defined by itself: {error}")
                circles.add(frozenset(error.path))
            yield from problems
            continue
        except GuardSyntaxError as error:
            if not too_large.intersection(part.name for part in walk(expression) if isinstance(part, Name)):
                yield _problem(scope, "G201", name, str(error))
            too_large.add(name)
            yield from problems
            continue
        if not problems and (constant := constant_value(whole)) is not None:
            hint = "an edge that is always taken needs no guard; one that is never taken can be removed"
            problems.append(_problem(scope, "G205", name, f"is always {str(constant).lower()}, whatever happens", hint))
        yield from problems
        expanded[name] = whole
    named = {part.name for guard in guards.values() for part in walk(guard) if isinstance(part, Name)}
    for name in guards:
        if name not in used and name not in named:
            yield _problem(scope, "G209", name, "no edge and no other guard names it", severity="warning")
    yield from _duplicates(scope, expanded)


def check_bypassed(plan: Plan) -> Iterator[Problem]:
    """Every guard that reads what only a visit changes, of a node that its parameters bypass."""
    for scope in plan.scopes.values():
        for name, text in scope.graph.guards.items():
            for read in dict.fromkeys(part for part in walk(parse(text)) if isinstance(part, FieldOf)):
                planned = plan.by_path[f"{scope.path}{read.node}"]
                kind = planned.kind
                left_out = kind.left_out(planned.parameters) if kind is not None and read.field in kind.fields else []
                if left_out:
                    message = f"`{read.node}` is bypassed, so `{read.node}.{read.field}` never changes"
                    hint = f"set `{read.node}.{left_out[0]}`, or read another node"
                    yield _problem(scope, "G210", name, message, hint, severity="warning")


def _guard(scope: Scope, name: str, expression: Expression, guards: dict[str, Expression]) -> Iterator[Problem]:
    if name in scope.slots:
        message = f"a slot is called `{name}` too, so the name means two things"
        yield _problem(scope, "G208", name, message, "rename the guard")
    sound = True
    for part in walk(expression):
        for problem in _name(scope, name, part, guards):
            sound = False
            yield problem
    if sound:
        try:
            value_type = _type(scope, expression, frozenset(guards))
        except _ValueTypeError as problem:
            yield _problem(scope, "G204", name, str(problem), problem.hint)
        else:
            if value_type not in ("boolean", "unknown"):
                message = f"a guard is true or false; this is a {value_type}"
                yield _problem(scope, "G204", name, message, "compare it with something, as in `> 0`")


def _name(scope: Scope, guard: str, part: Expression, guards: dict[str, Expression]) -> Iterator[Problem]:
    nodes = scope.graph.nodes
    if (
        isinstance(part, Name)
        and part.name not in scope.graph.guards
        and part.name not in scope.slots
        and (part.name in nodes or not _may_be_a_slot(scope))
    ):
        hint = suggestion(part.name, [*scope.graph.guards, *scope.slots])
        if part.name in nodes:
            hint = f"`{part.name}` is a node; read one of its fields: {', '.join(scope.fields(part.name))}"
        yield _problem(scope, "G202", guard, f"unknown name `{part.name}`", hint)
    if not isinstance(part, FieldOf):
        return
    if part.node not in nodes:
        yield _problem(
            scope,
            "G202",
            guard,
            f"unknown node `{part.node}` in `{part.node}.{part.field}`",
            suggestion(part.node, nodes),
        )
        return
    value_type = scope.field_type(part.node, part.field)
    if value_type is None:
        hint = suggestion(part.field, scope.fields(part.node))
        yield _problem(scope, "G203", guard, f"`{part.node}` has no field `{part.field}`", hint)
    elif value_type in ("trigger", "other"):
        hint = f"read `{part.node}.due`" if value_type == "trigger" else suggestion("", scope.fields(part.node))
        yield _problem(scope, "G204", guard, f"`{part.node}.{part.field}` is not a number, text or truth value", hint)


def _may_be_a_slot(scope: Scope) -> bool:
    """True where a node whose kind is not known could write a slot of any name."""
    return scope.has_unknown or (scope.outer is not None and _may_be_a_slot(scope.outer))


class _ValueTypeError(Exception):
    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _type(scope: Scope, expression: Expression, guards: frozenset[str]) -> ValueType:
    """The type of an expression whose names are known to exist."""
    match expression:
        case Constant(bool()):
            return "boolean"
        case Constant(str()):
            return "string"
        case Constant():
            return "number"
        case Name(name):
            return "boolean" if name in guards else "unknown"
        case FieldOf(node, field):
            return scope.field_type(node, field) or "unknown"
        case Not(operand):
            _expect(scope, operand, "boolean", "not", guards)
            return "boolean"
        case Both(operands) | Either(operands):
            for operand in operands:
                _expect(scope, operand, "boolean", "and" if isinstance(expression, Both) else "or", guards)
            return "boolean"
        case Negative(operand):
            _expect(scope, operand, "number", "-", guards)
            return "number"
        case Arithmetic(symbol, left, right):
            _expect(scope, left, "number", symbol, guards)
            _expect(scope, right, "number", symbol, guards)
            return "number"
        case Comparison(operands, symbols):
            _compare(scope, operands, symbols, guards)
            return "boolean"


def _expect(scope: Scope, operand: Expression, wanted: ValueType, symbol: str, guards: frozenset[str]) -> None:
    value_type = _type(scope, operand, guards)
    if value_type not in (wanted, "unknown"):
        hint = "compare the number, as in `> 0`" if (wanted, value_type) == ("boolean", "number") else ""
        raise _ValueTypeError(f"`{symbol}` takes a {wanted}; `{spell(operand)}` is a {value_type}", hint)


def _compare(scope: Scope, operands: tuple[Expression, ...], symbols: tuple[str, ...], guards: frozenset[str]) -> None:
    types = [_type(scope, operand, guards) for operand in operands]
    for symbol, left, right, first, second in zip(symbols, types, types[1:], operands, operands[1:], strict=False):
        if "unknown" not in (left, right) and left != right:
            raise _ValueTypeError(
                f"`{spell(first)}` is a {left} and `{spell(second)}` a {right}: they cannot be compared"
            )
        if symbol not in ("==", "!=") and {left, right} & {"boolean", "string"}:
            raise _ValueTypeError(f"`{symbol}` compares numbers; `{spell(first)}` is a {left}")


def _duplicates(scope: Scope, expanded: dict[str, Expression]) -> Iterator[Problem]:
    for source, leaving in scope.graph.edges.items():
        seen: dict[Expression, str] = {}
        for edge in leaving:
            if edge.when is None or edge.when not in expanded:
                continue
            first = seen.setdefault(expanded[edge.when], str(edge))
            if first != str(edge):
                message = f'"{edge}" is never taken: "{first}" is evaluated before it and has the same guard'
                yield scope.problem("G206", edge.place, f"edges.{source}", message)


def spell(expression: Expression) -> str:
    """An expression as text, for messages."""
    match expression:
        case Constant(value):
            return repr(value).lower() if isinstance(value, bool) else repr(value)
        case Name(name):
            return name
        case FieldOf(node, field):
            return f"{node}.{field}"
        case Not(operand):
            return f"not {spell(operand)}"
        case Negative(operand):
            return f"-{spell(operand)}"
        case Both(operands):
            return " and ".join(map(spell, operands))
        case Either(operands):
            return "(" + " or ".join(map(spell, operands)) + ")"
        case Arithmetic(symbol, left, right):
            return f"({spell(left)} {symbol} {spell(right)})"
        case Comparison(operands, symbols):
            rest = "".join(f" {symbol} {spell(operand)}" for symbol, operand in zip(symbols, operands[1:], strict=True))
            return spell(operands[0]) + rest


def _problem(scope: Scope, code: str, name: str, message: str, hint: str = "", *, severity: str = "error") -> Problem:
    place = scope.graph.places.get(f"guards.{name}")
    text = scope.graph.guards[name]
    shown = text if len(text) <= 120 else text[:117] + "..."
    text = f'guard `{name}`: {message}\n    {name} = "{shown}"'
    return scope.problem(code, place, f"guards.{name}", text, hint, severity=severity)  # type: ignore[arg-type]
