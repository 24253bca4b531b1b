"""G2xx: guards parse, their names and fields exist and have the right types, none is constant or repeated.

`checks.expressions` checks the same of the expressions that nodes read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from graphtrain.graph.elements import Problem, Severity, nodes_of
from graphtrain.kind.parameter import known_mode
from graphtrain.language.closures import COMPARISONS, constant_value
from graphtrain.language.syntax import (
    FUNCTIONS,
    NUMBERS,
    Constant,
    Expression,
    FieldOf,
    GuardCycleError,
    GuardSyntaxError,
    Name,
    Operation,
    expand,
    walk,
)
from graphtrain.names import suggestion
from graphtrain.plan.scope import Scope, ValueType, field_type, readable_fields, resources_of


def check_guards(scope: Scope) -> Iterator[Problem]:
    """Every problem of the guards of one graph."""
    guards: dict[str, Expression] = {}
    for name, text in scope.graph.guards.items():
        try:
            guards[name] = scope.parse(text)
        except GuardSyntaxError as error:
            yield _problem(scope, name, "G201", str(error))
    used = {edge.when for leaving in scope.graph.edges.values() for edge in leaving}
    expanded: dict[str, Expression] = {}
    circles: set[frozenset[str]] = set()  # each is reported once, at its first guard
    for name, expression in guards.items():
        problems = list(_guard(scope, name, expression, guards))
        try:
            whole = expand(expression, guards, (name,))
        except GuardCycleError as error:
            if name in error.path and frozenset(error.path) not in circles:
                yield _problem(scope, name, "G207", f"defined in terms of itself: {error}")
                circles.add(frozenset(error.path))
            yield from problems
            continue
        if not problems and (constant := constant_value(whole)) is not None:
            hint = "an edge that is always taken needs no guard; one that is never taken can be removed"
            problems.append(_problem(scope, name, "G205", f"is always {str(constant).lower()}, whatever happens", hint))
        yield from problems
        expanded[name] = whole
    named = {part.name for guard in guards.values() for part in walk(guard) if isinstance(part, Name)}
    for name in guards:
        if name not in used and name not in named:
            yield _problem(scope, name, "G209", "no edge and no other guard names it", severity="warning")
    yield from _duplicates(scope, expanded)


def _guard(scope: Scope, name: str, expression: Expression, guards: dict[str, Expression]) -> Iterator[Problem]:
    if name in scope.slots:
        message = f"a slot is called `{name}` too, so the name means two things"
        yield _problem(scope, name, "G208", message, "rename the guard")
    elif name in NUMBERS:
        yield _problem(scope, name, "G208", f"`{name}` is the number in every expression", "rename the guard")
    sound = True
    for fault in name_faults(scope, scope.graph.guards[name], expression):
        sound = False
        yield _problem(scope, name, *fault)
    if sound:
        try:
            value_type = type_of(scope, expression, guards)
        except ValueTypeError as problem:
            yield _problem(scope, name, "G204", str(problem), problem.hint)
        else:
            if value_type not in ("boolean", "unknown"):
                message = f"a guard is true or false; this is a {_word(value_type)}"
                yield _problem(scope, name, "G204", message, "compare it with something, as in `> 0`")


class ExpressionFault(NamedTuple):
    """The problems of an expression, in a guard or elsewhere."""

    code: str
    message: str
    hint: str = ""


def name_faults(scope: Scope, text: str, expression: Expression) -> Iterator[ExpressionFault]:
    """Every undefined or ambiguous name in an expression."""
    for part in walk(expression):
        if isinstance(part, Name):
            yield from _name(scope, part.name, text)
        elif isinstance(part, FieldOf):
            yield from _field(scope, part)
    for name in scope.slots.intersection(NUMBERS):
        if re.search(rf"(?<![\w.]){name}\b", text):
            message = f"a slot is called `{name}`, which is the number in every expression"
            yield ExpressionFault("G208", message, _RENAME_SLOT)


_RENAME_SLOT = "rename the slot: `writes` of the node that writes it"


# How a metric, or the loss, decides: expressions read counts and Python numbers.
METRIC_HINT = (
    'the overlay `early_stop` ends a run by a metric (early_stop.monitor = "val/loss"), `return loss, graphtrain.STOP` '
    "of a step function by the loss; for anything else, a node of yours writes a Python number, as float(loss)"
)


def _name(scope: Scope, name: str, text: str) -> Iterator[ExpressionFault]:
    nodes = scope.graph.nodes
    if name in scope.graph.guards:
        return
    if name in scope.slots and name in scope.bodies:
        message = f"a slot is called `{name}`, as is a node with a body, whose name begins paths such as `{name}/...`"
        yield ExpressionFault("G208", message, _RENAME_SLOT)
    elif name not in scope.slots and (name in nodes or not scope.may_hold("")):
        yield ExpressionFault("G202", f"unknown name `{name}`", _meant(scope, name, text))
    elif not scope.may_hold("") and any(resources_of([scope.resolve(name)])):
        message = f"no node writes a slot `{name}`: an expression reads saved state, no resources"
        yield ExpressionFault("G202", message, suggestion(name, {*scope.written, *scope.graph.guards}))


def _meant(scope: Scope, name: str, text: str) -> str:
    """A hint for a name that means nothing in an expression."""
    if name in scope.graph.nodes:
        return f"`{name}` is a node; read one of its fields: {', '.join(readable_fields(scope, name))}"
    if (counter := scope.graph.units.get(name) or scope.graph.units.get(f"{name}s")) is not None:
        return f"the clock counts it: read `{counter}`"
    if known_mode(name) is not None or f"{name}/" in text:
        return METRIC_HINT
    return suggestion(name, [*scope.graph.guards, *scope.slots])


def _field(scope: Scope, part: FieldOf) -> Iterator[ExpressionFault]:
    shown = f"`{part.node}.{part.field}`"
    if scope.inside(part.node) is None:
        yield ExpressionFault("G202", *no_node(scope, part.node, shown))
        return
    value_type = field_type(scope, part.node, part.field)
    if value_type is None:
        hint = suggestion(part.field, readable_fields(scope, part.node))
        yield ExpressionFault("G203", f"`{part.node}` has no field `{part.field}`", hint)
    elif value_type in ("trigger", "other"):
        hint = f"read `{part.node}.due`" if value_type == "trigger" else ""
        yield ExpressionFault("G204", f"{shown} is not a number, text or truth value", hint)


def no_node(scope: Scope, path: str, shown: str) -> tuple[str, str]:
    """The reason why a path leads to no node, and a hint."""
    return f"unknown node `{path}` in {shown}", suggestion(path, nodes_of(scope.graph))


class ValueTypeError(Exception):
    """Types that do not fit in an expression."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def _word(value_type: ValueType) -> str:
    return "number" if value_type == "integer" else value_type


def type_of(scope: Scope, expression: Expression, guards: Collection[str]) -> ValueType:
    """The type of an expression whose names are known to exist.

    Raises:
        ValueTypeError: types in it do not match.
    """
    match expression:
        case Constant(bool()):
            return "boolean"
        case Constant(str()):
            return "string"
        case Constant(int()):
            return "integer"
        case Constant():
            return "number"
        case Name(name):
            return "boolean" if name in guards else "unknown"
        case FieldOf(node, field):
            return field_type(scope, node, field) or "unknown"
        case Operation("not" | "and" | "or" as name, operands):
            for operand in operands:
                _expect(scope, operand, "boolean", name, guards)
            return "boolean"
        case Operation("if", (condition, then, otherwise)):
            _expect(scope, condition, "boolean", "if", guards)
            first, second = (type_of(scope, operand, guards) for operand in (then, otherwise))
            if "unknown" not in (first, second) and _word(first) != _word(second):
                raise ValueTypeError(
                    f"`{spell(then)}` is a {_word(first)} and `{spell(otherwise)}` a {_word(second)}: "
                    "an expression has one type"
                )
            return _common({first, second}) if first != second else first
        case Operation(name, (left, right)) if name in COMPARISONS:
            _compare(scope, name, left, right, guards)
            return "boolean"
        case Operation(name, operands):
            types = {_expect(scope, operand, "number", name, guards) for operand in operands}
            if name in ("floor", "ceil"):
                return "integer"
            return "number" if name == "/" or name in FUNCTIONS.keys() - {"abs", "min", "max"} else _common(types)
    raise AssertionError(expression)


def _common(types: set[ValueType]) -> ValueType:
    """The type of the result for operands of these types."""
    return "unknown" if "unknown" in types else "integer" if types == {"integer"} else "number"


def _expect(scope: Scope, operand: Expression, wanted: ValueType, symbol: str, guards: Collection[str]) -> ValueType:
    value_type = type_of(scope, operand, guards)
    if _word(value_type) not in (wanted, "unknown"):
        hint = "compare the number, as in `> 0`" if (wanted, _word(value_type)) == ("boolean", "number") else ""
        raise ValueTypeError(f"`{symbol}` takes a {wanted}; `{spell(operand)}` is a {_word(value_type)}", hint)
    return value_type


def _compare(scope: Scope, symbol: str, first: Expression, second: Expression, guards: Collection[str]) -> None:
    left, right = (_word(type_of(scope, operand, guards)) for operand in (first, second))
    if "unknown" not in (left, right) and left != right:
        raise ValueTypeError(f"`{spell(first)}` is a {left} and `{spell(second)}` a {right}: they cannot be compared")
    if symbol not in ("==", "!=") and {left, right} & {"boolean", "string"}:
        raise ValueTypeError(f"`{symbol}` compares numbers; `{spell(first)}` is a {left}")


def _duplicates(scope: Scope, expanded: dict[str, Expression]) -> Iterator[Problem]:
    for source, leaving in scope.graph.edges.items():
        seen: dict[Expression, str] = {}
        for edge in leaving:
            if edge.when is None or edge.when not in expanded:
                continue
            first = seen.setdefault(expanded[edge.when], str(edge))
            if first != str(edge):
                message = f'"{edge}" is never taken: "{first}" is evaluated before it and has the same guard'
                yield scope.problem("G206", f"edges.{source}", message, place=edge.place)


def spell(expression: Expression) -> str:
    """An expression as text, for messages."""
    match expression:
        case Constant(value):
            return repr(value).lower() if isinstance(value, bool) else repr(value)
        case Name(name):
            return name
        case FieldOf(node, field):
            return f"{node}.{field}"
        case Operation("if", (condition, then, otherwise)):
            return f"({spell(then)} if {spell(condition)} else {spell(otherwise)})"
        case Operation(name, operands) if name in FUNCTIONS:
            return f"{name}({', '.join(map(spell, operands))})"
        case Operation(name, (operand,)):
            return f"{name} {spell(operand)}" if name == "not" else f"{name}{spell(operand)}"
        case Operation(name, operands):
            text = f" {name} ".join(map(spell, operands))
            return text if name == "and" or name in COMPARISONS else f"({text})"
    raise AssertionError(expression)


def _problem(scope: Scope, name: str, code: str, message: str, hint: str = "", severity: Severity = "error") -> Problem:
    text = scope.graph.guards[name]
    shown = text if len(text) <= 120 else text[:117] + "..."
    text = f'guard `{name}`: {message}\n    {name} = "{shown}"'
    return scope.problem(code, f"guards.{name}", text, hint, severity=severity)
