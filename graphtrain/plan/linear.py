"""Expressions of counters, with how they change when the counters do.

A value is kept with its coefficients: by how much it grows with each counter. What an answer depends on is noted, so
that a stretch of a run can be repeated without going through it, for as long as every answer in it stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple

from graphtrain.guards.evaluate import FUNCTIONS, OPERATORS
from graphtrain.guards.syntax import (
    Arithmetic,
    Both,
    Call,
    Comparison,
    Conditional,
    Constant,
    Either,
    Expression,
    Negative,
    Not,
)


class _Unknown:
    """Stands for what is no count: a metric, what a step function returns, a reading of the wall clock."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = _Unknown()

Exact = int | Fraction
Coefficients = tuple[tuple[str, Exact], ...]
"""Counter -> by how much a value grows with it."""


class Linear(NamedTuple):
    """A value, and its coefficients; those of what is no number are none.

    Attributes:
        is_rounded: True where the value was computed in floating point, and so lies near a line.
    """

    value: Any
    coefficients: Coefficients = ()
    is_rounded: bool = False


Note = tuple[str, Coefficients]
"""What is asked of a value, ``">="`` 0 for one (``">=~"`` if it is rounded), or that it changes by multiples only:
``"% 5"``; and how the value changes."""

# A remainder of less than this comes back so often that it is followed from one time to the next.
_OFTEN = 64
# Of what lies near a line, the last answers are found by going there.
_MARGIN = Fraction(1, 10**9)


@dataclass
class Notes:
    """What the answers of a stretch of a run depend on: of all that is asked, the value nearest to another answer.

    Attributes:
        values: by what is asked.
    """

    values: dict[Note, Exact] = field(default_factory=dict)

    def add(self, asked: str, coefficients: Coefficients, value: Exact) -> None:
        """Note an answer. What does not change with any counter has the same one forever."""
        if not coefficients:
            return
        note = (asked, coefficients)
        known = self.values.get(note)
        if known is None or (value < known if asked[0] == ">" else value > known):
            self.values[note] = value

    def compared(self, left: Linear, right: Linear, symbol: str, answer: bool) -> None:
        """Note the answer of a comparison of two numbers."""
        coefficients = combined(left.coefficients, right.coefficients, -1)
        if not coefficients or _is_infinite(left) or _is_infinite(right):
            return  # what is counted never reaches it
        difference = exact(left.value) - exact(right.value)
        if not answer:
            symbol = {"<": ">=", "<=": ">", "==": "!=", "!=": "==", ">=": "<", ">": "<="}[symbol]
        if symbol == "!=":
            symbol = "<" if difference < 0 else ">"
        self.add(symbol + "~" * (left.is_rounded or right.is_rounded), coefficients, difference)

    def depends_on(self, value: Linear, modulus: Exact | None = None) -> None:
        """Note that nothing may change what a value is; or nothing but a multiple of a number."""
        self.add("==" if modulus is None else f"% {modulus}", value.coefficients, 0)

    def within(self, value: Linear, least: Any, limit: Any) -> None:
        """Note that a value is at least one number, and less than another."""
        self.compared(value, Linear(least), ">=", answer=True)
        self.compared(value, Linear(limit), "<", answer=True)

    def join(self, other: Notes) -> None:
        """Note what others have noted after this."""
        for (asked, coefficients), value in other.values.items():
            self.add(asked, coefficients, value)

    def repeats(self, changes: Mapping[str, Exact]) -> float:
        """How often the counters can change by so much with every answer as it is; infinity if nothing sets an end."""
        most: float = math.inf
        for (asked, coefficients), value in self.values.items():
            change = shift(coefficients, changes)
            if not change:
                continue
            if asked[0] == "%":
                if change % Fraction(asked[2:]):
                    return 0
            elif asked[0] == "=":
                return 0
            elif (change < 0) == (asked[0] == ">"):
                if asked[-1] == "~":
                    certain = _size(value) * (1 - _MARGIN) - _size(change)
                    value = certain if certain > 0 else 0
                # As whole numbers, which is faster than as fractions: the last time before the answer is another one.
                times = _size(value) // _size(change) if "=" in asked else -(-_size(value) // _size(change)) - 1
                most = min(most, times)
        return max(most, 0)

    def after(self, changes: Mapping[str, Exact], times: int) -> Notes:
        """What is noted when the counters have changed so often."""
        moved = Notes()
        for (asked, coefficients), value in self.values.items():
            moved.add(asked, coefficients, value + times * shift(coefficients, changes))
        return moved


def exact(number: Any) -> Exact:
    """A number without rounding."""
    return number if isinstance(number, int | Fraction) else Fraction(number)


def _is_infinite(value: Linear) -> bool:
    return value.value in (math.inf, -math.inf)


def _size(number: Exact) -> Exact:
    return -number if number < 0 else number


def shift(coefficients: Coefficients, changes: Mapping[str, Exact]) -> Exact:
    """By how much a value changes with the counters."""
    total: Exact = 0
    for name, factor in coefficients:
        if name in changes:
            total += factor * changes[name]
    return total


def combined(first: Coefficients, second: Coefficients, factor: Exact = 1) -> Coefficients:
    """Those of a sum, of which the second part is multiplied."""
    if not second:
        return first
    total = dict(first)
    for name, coefficient in second:
        total[name] = total.get(name, 0) + factor * coefficient
    return tuple(sorted((name, coefficient) for name, coefficient in total.items() if coefficient))


Read = Callable[[Expression], Linear]


def evaluate_linear(expression: Expression, read: Read, notes: Notes) -> Linear:
    """The value of an expression, or `UNKNOWN` where it depends on what is unknown; what it depends on is noted.

    Arguments:
        read: the value of a field or of a slot.

    >>> from graphtrain.guards.syntax import parse
    >>> count = Linear(7, (("count", 1),))
    >>> noted = Notes()
    >>> evaluate_linear(parse("a.count < 10 and 2 * a.count > 3"), lambda name: count, noted).value
    True
    >>> noted.repeats({"count": 1})
    2
    """

    def value_of(part: Expression) -> Linear:
        return evaluate_linear(part, read, notes)

    match expression:
        case Constant(value):
            return Linear(value)
        case Not(operand):
            value = _truth(value_of(operand), notes)
            return Linear(UNKNOWN if value is UNKNOWN else not value)
        case Both(operands) | Either(operands):
            return Linear(_all_or_any(operands, value_of, notes, stop_at=isinstance(expression, Either)))
        case Comparison(operands, symbols):
            return Linear(_compared([value_of(operand) for operand in operands], symbols, notes))
        case Conditional(condition, then, otherwise):
            holds = _truth(value_of(condition), notes)
            return Linear(UNKNOWN) if holds is UNKNOWN else value_of(then if holds else otherwise)
        case Negative(operand):
            return _computed("*", value_of(operand), Linear(-1), notes)
        case Arithmetic(symbol, left, right):
            return _computed(symbol, value_of(left), value_of(right), notes)
        case Call(function, operands):
            return _called(function, [value_of(operand) for operand in operands], notes)
    return read(expression)


def _all_or_any(operands: tuple[Expression, ...], value_of: Read, notes: Notes, *, stop_at: bool) -> Any:
    is_unknown = False
    for operand in operands:
        value = _truth(value_of(operand), notes)
        if value is stop_at:
            return stop_at
        is_unknown = is_unknown or value is UNKNOWN
    return UNKNOWN if is_unknown else not stop_at


def _truth(value: Linear, notes: Notes) -> Any:
    if value.value is UNKNOWN or isinstance(value.value, bool):
        return value.value
    if value.coefficients:
        notes.compared(value, Linear(0), "!=", bool(value.value))
    return bool(value.value)


def _compared(values: list[Linear], symbols: tuple[str, ...], notes: Notes) -> Any:
    is_unknown = False
    for symbol, left, right in zip(symbols, values, values[1:], strict=False):
        if left.value is UNKNOWN or right.value is UNKNOWN:
            is_unknown = True
            continue
        try:
            answer = bool(OPERATORS[symbol](left.value, right.value))
        except TypeError:
            return UNKNOWN
        if left.coefficients or right.coefficients:
            notes.compared(left, right, symbol, answer)
        if not answer:
            return False
    return UNKNOWN if is_unknown else True


def _computed(symbol: str, left: Linear, right: Linear, notes: Notes) -> Linear:
    is_counted = bool(left.coefficients or right.coefficients)
    if UNKNOWN in (left.value, right.value) or (is_counted and (_is_infinite(left) or _is_infinite(right))):
        return Linear(UNKNOWN)
    try:
        value = OPERATORS[symbol](left.value, right.value)
    except (ArithmeticError, TypeError, ValueError):
        return Linear(UNKNOWN)  # the run would stop there
    if not is_counted:
        return Linear(value)
    rounded = isinstance(value, float)
    if not isinstance(value, int | float | Fraction) or (rounded and not math.isfinite(value)):
        return Linear(UNKNOWN)
    match symbol:
        case "+" | "-":
            coefficients = combined(left.coefficients, right.coefficients, 1 if symbol == "+" else -1)
            return Linear(value, coefficients, rounded)
        case "*" if not right.coefficients:
            return Linear(value, combined((), left.coefficients, exact(right.value)), rounded)
        case "*" if not left.coefficients:
            return Linear(value, combined((), right.coefficients, exact(left.value)), rounded)
        case "/" if not right.coefficients:
            return Linear(value, combined((), left.coefficients, 1 / Fraction(right.value)), rounded)
        case "%" | "//" if not (right.coefficients or rounded):
            divisor = exact(right.value)
            if divisor < _OFTEN:
                notes.depends_on(left, _size(divisor))
                return Linear(value, combined((), left.coefficients, 1 / Fraction(divisor)) if symbol == "//" else ())
            quotient = value if symbol == "//" else left.value // divisor
            notes.within(left, quotient * divisor, (quotient + 1) * divisor)
            return Linear(value, () if symbol == "//" else left.coefficients)
    notes.depends_on(left)
    notes.depends_on(right)
    return Linear(value)


def _called(function: str, values: list[Linear], notes: Notes) -> Linear:
    if any(value.value is UNKNOWN for value in values):
        return Linear(UNKNOWN)
    if function in ("min", "max"):
        best = values[0]
        for value in values[1:]:
            is_better = value.value < best.value if function == "min" else value.value > best.value
            notes.compared(value, best, "<" if function == "min" else ">", is_better)
            best = value if is_better else best
        return best
    try:
        result = FUNCTIONS[function](*[value.value for value in values])
    except (ArithmeticError, TypeError, ValueError):
        return Linear(UNKNOWN)
    if function == "floor":
        notes.within(values[0], result, result + 1)
    elif function == "ceil":
        notes.compared(values[0], Linear(result), "<=", answer=True)
        notes.compared(values[0], Linear(result - 1), ">", answer=True)
    else:
        for value in values:
            notes.depends_on(value)
    return Linear(result)
