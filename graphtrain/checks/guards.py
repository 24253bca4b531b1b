"""G2xx: guards, and expressions that nodes read, parse; their names and fields exist and have the right types.

No guard is constant or repeated, and nothing is defined in terms of itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from graphtrain.graph.elements import Node, Problem, Severity, nodes_of
from graphtrain.kind import Kind
from graphtrain.kind.parameter import Parameter, known_mode
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
    is_expression,
    walk,
)
from graphtrain.names import suggestion
from graphtrain.plan.scope import (
    Ref,
    Scope,
    ValueType,
    field_type,
    readable_fields,
    resources_of,
    value_type,
)


class ExpressionFault(NamedTuple):
    """What is wrong with an expression, in a guard or elsewhere."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class _Place:
    """An expression in a graph: the place, what it is called there, the key in the file, and the text."""

    scope: Scope
    where: str
    title: str
    key: str
    text: str

    def problem(self, code: str, message: str, hint: str = "", severity: Severity = "error") -> Problem:
        shown = self.text if len(self.text) <= 120 else self.text[:117] + "..."
        text = f'{self.title}: {message}\n    {self.key} = "{shown}"'
        return self.scope.problem(code, self.where, text, hint, severity=severity)

    def problems(
        self, expression: Expression, misfit: Callable[[ValueType], ExpressionFault | None]
    ) -> Iterator[Problem]:
        """The problems of its names and types.

        Arguments:
            misfit: returns what is wrong with an expression of a type.
        """
        faults: list[ExpressionFault | None] = [*_name_faults(self.scope, self.text, expression)]
        if not faults:
            try:
                faults = [misfit(type_of(self.scope, expression))]
            except ValueTypeError as error:
                faults = [ExpressionFault("G204", str(error), error.hint)]
        yield from (self.problem(*fault) for fault in faults if fault is not None)


def _guard_place(scope: Scope, name: str) -> _Place:
    return _Place(scope, f"guards.{name}", f"guard `{name}`", name, scope.graph.guards[name])


def check_guards(scope: Scope) -> Iterator[Problem]:
    """Every problem of the guards of one graph."""
    guards: dict[str, Expression] = {}
    for name, text in scope.graph.guards.items():
        try:
            guards[name] = scope.parse(text)
        except GuardSyntaxError as error:
            yield _guard_place(scope, name).problem("G201", str(error))
    used = {edge.when for leaving in scope.graph.edges.values() for edge in leaving}
    expanded: dict[str, Expression] = {}
    circles: set[frozenset[str]] = set()  # each is reported once, at its first guard
    for name, expression in guards.items():
        place = _guard_place(scope, name)
        problems = [*_shadowed(place), *place.problems(expression, _not_a_guard)]
        try:
            whole = expand(expression, guards, (name,))
        except GuardCycleError as error:
            if name in error.path and frozenset(error.path) not in circles:
                yield place.problem("G207", f"defined in terms of itself: {error}")
                circles.add(frozenset(error.path))
            yield from problems
            continue
        if not problems and (constant := constant_value(whole)) is not None:
            hint = "an edge that is always taken needs no guard; one that is never taken can be removed"
            problems.append(place.problem("G205", f"is always {str(constant).lower()}, whatever happens", hint))
        yield from problems
        expanded[name] = whole
    named = {part.name for guard in guards.values() for part in walk(guard) if isinstance(part, Name)}
    for name in guards:
        if name not in used and name not in named:
            yield _guard_place(scope, name).problem("G209", "no edge and no other guard names it", severity="warning")
    yield from _duplicates(scope, expanded)


def _shadowed(place: _Place) -> Iterator[Problem]:
    """A guard whose name means something else too."""
    if place.key in place.scope.slots:
        message = f"a slot is called `{place.key}` too, so the name means two things"
        yield place.problem("G208", message, "rename the guard")
    elif place.key in NUMBERS:
        yield place.problem("G208", f"`{place.key}` is the number in every expression", "rename the guard")


def _not_a_guard(received: ValueType) -> ExpressionFault | None:
    if received in ("boolean", "unknown"):
        return None
    message = f"a guard is true or false; this is a {_word(received)}"
    return ExpressionFault("G204", message, "compare it with something, as in `> 0`")


def _name_faults(scope: Scope, text: str, expression: Expression) -> Iterator[ExpressionFault]:
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


def _word(received: ValueType) -> str:
    return "number" if received == "integer" else received


def type_of(scope: Scope, expression: Expression) -> ValueType:
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
            return "boolean" if name in scope.graph.guards else "unknown"
        case FieldOf(node, field):
            return field_type(scope, node, field) or "unknown"
        case Operation("not" | "and" | "or" as name, operands):
            for operand in operands:
                _expect(scope, operand, "boolean", name)
            return "boolean"
        case Operation("if", (condition, then, otherwise)):
            _expect(scope, condition, "boolean", "if")
            first, second = (type_of(scope, operand) for operand in (then, otherwise))
            if "unknown" not in (first, second) and _word(first) != _word(second):
                raise ValueTypeError(
                    f"`{spell(then)}` is a {_word(first)} and `{spell(otherwise)}` a {_word(second)}: "
                    "an expression has one type"
                )
            return _common({first, second}) if first != second else first
        case Operation(name, (left, right)) if name in COMPARISONS:
            _compare(scope, name, left, right)
            return "boolean"
        case Operation(name, operands):
            types = {_expect(scope, operand, "number", name) for operand in operands}
            if name in ("floor", "ceil"):
                return "integer"
            return "number" if name == "/" or name in FUNCTIONS.keys() - {"abs", "min", "max"} else _common(types)
    raise AssertionError(expression)


def _common(types: set[ValueType]) -> ValueType:
    """The type of the result for operands of these types."""
    return "unknown" if "unknown" in types else "integer" if types == {"integer"} else "number"


def _expect(scope: Scope, operand: Expression, wanted: ValueType, symbol: str) -> ValueType:
    received = type_of(scope, operand)
    if _word(received) not in (wanted, "unknown"):
        hint = "compare the number, as in `> 0`" if (wanted, _word(received)) == ("boolean", "number") else ""
        raise ValueTypeError(f"`{symbol}` takes a {wanted}; `{spell(operand)}` is a {_word(received)}", hint)
    return received


def _compare(scope: Scope, symbol: str, first: Expression, second: Expression) -> None:
    left, right = (_word(type_of(scope, operand)) for operand in (first, second))
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
                yield scope.problem("G206", f"edges.{source}", message)


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


# ---- the expressions that nodes read


def check_expressions(scope: Scope) -> Iterator[Problem]:
    """Every problem of the expressions that the nodes of one graph read."""
    targets: list[tuple[_Place, Ref]] = []
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
                place = _Place(scope, f"nodes.{node.name}.reads.{name}", f"{node.name}.{name}", name, text)
                problems = list(_problems_of(place, target.parameter))
                is_sound = is_sound and not problems
                targets.append((place, target))
                yield from problems
    if is_sound:
        yield from _cycles(targets)


def _cannot_vary(scope: Scope, node: Node, kind: Kind, name: str) -> Problem | None:
    """The problem of a parameter that cannot have an expression, if it cannot."""
    if name in kind.varying and name not in node.parameters and isinstance(node.reads[name], str):
        return None
    varying = ", ".join(other for other in kind.varying if other in kind.parameters) or "none"
    message = f"`{node.name}.{name}` cannot be given an expression: it is read once, has a value, or is a list"
    hint = f"the parameters of `{kind.name}` that are read at every visit: {varying}"
    return scope.problem("G211", f"nodes.{node.name}.reads.{name}", message, hint)


def _problems_of(place: _Place, parameter: Parameter | None) -> Iterator[Problem]:
    """The problems of an expression by itself: its text, its names, its type."""

    def misfit(received: ValueType) -> ExpressionFault | None:
        wanted = value_type(parameter.annotation) if parameter is not None else "unknown"
        if parameter is None or "unknown" in (received, wanted):
            return None
        if received == wanted or (received, wanted) == ("integer", "number"):
            return None
        hint = "write `//`, or round with `floor` or `ceil`" if (received, wanted) == ("number", "integer") else ""
        article = "an" if received == "integer" else "a"
        message = f"expected {parameter.type_name}, and the expression is {article} {received}"
        return ExpressionFault("G204", message, hint)

    try:
        parsed = place.scope.parse(place.text)
    except GuardSyntaxError as error:
        if parameter is None and "not an expression" in str(error):
            message = f"`{place.text}` is not a valid name for a slot"
            yield place.scope.problem("G115", place.where, message, "nor is it a field (`node.field`) or an expression")
        else:
            yield place.problem("G201", str(error))
        return
    yield from place.problems(parsed, misfit)


def _cycles(targets: list[tuple[_Place, Ref]]) -> Iterator[Problem]:
    circles: set[frozenset[str]] = set()  # each is reported once, at its first expression
    for place, target in targets:
        try:
            circle = _circle(target, (target.name,))
        except (GuardSyntaxError, GuardCycleError):  # a faulty guard is reported at the guard
            continue
        if target.name in circle and frozenset(circle) not in circles:
            circles.add(frozenset(circle))
            yield place.problem("G207", f"defined in terms of itself: {' -> '.join(circle)}")


def _circle(target: Ref, path: tuple[str, ...]) -> tuple[str, ...]:
    """The names on a path from an expression into a cycle; empty if there is none."""
    for inner in target.reads():
        if inner.kind == "expression":
            if inner.name in path:
                return (*path[path.index(inner.name) :], inner.name)
            if further := _circle(inner, (*path, inner.name)):
                return further
    return ()
