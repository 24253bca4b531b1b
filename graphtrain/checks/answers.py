"""What is known of the values that guards read, and which values of guards are consistent with it.

A guard is split into its comparisons. Each restricts the values of its operand; truth values are consistent if every
operand has a value left, so ``count > 1`` and ``count == 0`` are not.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from graphtrain.kind.parameter import Above
from graphtrain.language.closures import COMPARISONS, constant_value
from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation, walk
from graphtrain.plan.scope import Scope

# The ways in which a guard can have a value are not distinguished beyond this number.
MOST_WAYS = 64

CONNECTIVES = ("not", "and", "or", "if")


class Values(NamedTuple):
    """The values that an operand may have: an interval with holes.

    Attributes:
        least, most: the bounds, both included. Default: none.
        without: excluded values between them. Default: none.
        whole: True if only whole numbers remain. Default: False.
    """

    least: Any = None
    most: Any = None
    without: frozenset[Any] = frozenset()
    whole: bool = False


ANY = Values()


@functools.lru_cache(maxsize=1024)  # few pairs come again and again
def intersection(first: Values, other: Values) -> Values | None:
    """The values in both; None if there are none.

    >>> intersection(Values(least=2), Values(most=0)) is None
    True
    """
    if first is ANY:  # most fields have no declared bounds
        return other
    try:
        least, most = first.least, first.most
        if least is None or (other.least is not None and other.least > least):
            least = other.least
        if most is None or (other.most is not None and other.most < most):
            most = other.most
        without, whole = first.without | other.without, first.whole or other.whole
        if without and whole:
            without -= {math.inf, -math.inf}  # no whole number is equal to it
            while least in without:
                least += 1
            while most in without:
                most -= 1
        if least is not None or most is not None:  # no holes beyond the bounds: values that are equal look equal
            without = frozenset(
                each for each in without if (least is None or each >= least) and (most is None or each <= most)
            )
        if least is not None and most is not None and (least > most or (least == most and least in without)):
            return None
    except TypeError:  # a number and a text: nothing is known about a value that is compared with both
        return first
    return Values(least, most, without, whole)


def values_of(scope: Scope, node: str, field: str) -> Values:
    """The values that a parameter can have by its type; unrestricted for any other field."""
    kind = scope.kinds.get(node)
    return _values(kind.parameters[field].annotation) if kind is not None and field in kind.parameters else ANY


@functools.lru_cache(maxsize=1024)
def _values(annotation: Any) -> Values:
    plain, *bounds = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    least = max((bound.bound for bound in bounds if isinstance(bound, Above)), default=None)
    if least is not None and plain is int and math.isfinite(least):
        least = math.floor(least) + 1
    return Values(least=least, whole=plain is int)


# The sign of the difference of two operands.
_SIGNS = {
    "<": Values(most=-1, whole=True),
    "<=": Values(most=0, whole=True),
    "==": Values(0, 0, whole=True),
    "!=": Values(without=frozenset({0}), whole=True),
    ">=": Values(least=0, whole=True),
    ">": Values(least=1, whole=True),
}
_OPPOSITE = {"<": ">=", "<=": ">", "==": "!=", "!=": "==", ">=": "<", ">": "<="}
_SWAPPED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">=": "<=", ">": "<"}

# Knowledge of something that is read: its value, or the values it can have.
Known = Callable[[FieldOf], Constant | Values]

Facts = frozenset[tuple[int, Values]]
"""The values of some operands, by their number in a `Table`."""

NO_FACTS: Facts = frozenset()


def both(facts: Facts, others: Facts) -> Facts | None:
    """All of these facts; None if they are not consistent."""
    if not facts or not others or facts == others:
        return facts or others
    values = dict(facts)
    for term, left in others:
        common = intersection(left, values[term]) if term in values else left
        if common is None:
            return None
        values[term] = common
    return frozenset(values.items())


def together(known: Iterable[Facts], further: Iterable[Facts]) -> list[Facts]:
    """The consistent pairs, without those that only add to another: what it decides needs no further facts."""
    pairs = (both(*pair) for pair in itertools.product(known, further))
    found = dict.fromkeys(common for common in pairs if common is not None)
    return [facts for facts in found if not any(other < facts for other in found)]


def reads_in(expression: Expression) -> Iterator[FieldOf | Name]:
    """What an expression reads."""
    return (part for part in walk(expression) if isinstance(part, FieldOf | Name))


def atoms(guard: Expression) -> Iterator[Expression]:
    """The comparisons, and truth values, that decide a guard."""
    if isinstance(guard, Operation) and guard.name in CONNECTIVES:
        for operand in guard.operands:
            yield from atoms(operand)
    else:
        yield guard


class Table:
    """The operands of the guards of one graph, numbered, because comparing large expressions is slow.

    Attributes:
        terms: by number.
    """

    def __init__(self) -> None:
        self.terms: list[Expression] = []
        self._numbers: dict[Expression, int] = {}

    def ways_to_answer(self, expression: Expression, known: Known) -> dict[bool, tuple[Facts, ...] | None]:
        """The ways in which a guard can have each value, empty if it cannot; None if there are more than `MOST_WAYS`.

        >>> from graphtrain.language.syntax import parse
        >>> known = lambda read: Values(least=0, whole=True)
        >>> ways = Table().ways_to_answer(parse("a.count > 1 and a.count == 0"), known)
        >>> len(ways[True]), len(ways[False])
        (0, 2)
        """
        filled = _filled_in(expression, known)
        ways: dict[bool, tuple[Facts, ...] | None] = {}
        for answer in (True, False):
            try:
                ways[answer] = tuple(self._ways(filled, answer, known))
            except _TooManyError:
                ways[answer] = None
        return ways

    def _ways(self, expression: Expression, answer: bool, known: Known) -> list[Facts]:
        name = expression.name if isinstance(expression, Operation) else ""
        if name not in CONNECTIVES:
            return self._of_atom(expression, answer, known)
        assert isinstance(expression, Operation)
        operands = expression.operands
        if name == "not":
            return self._ways(operands[0], not answer, known)
        if name == "if":
            condition, then, otherwise = operands
            opposite = Operation("not", (condition,))
            either = Operation("and", (condition, then)), Operation("and", (opposite, otherwise))
            return self._ways(Operation("or", either), answer, known)
        if (name == "or") is answer:  # one operand decides
            ways = list(dict.fromkeys(way for operand in operands for way in self._ways(operand, answer, known)))
        else:
            ways = [NO_FACTS]
            for operand in operands:
                ways = together(ways, self._ways(operand, answer, known))
                if len(ways) > MOST_WAYS:
                    raise _TooManyError
        if len(ways) > MOST_WAYS:
            raise _TooManyError
        return ways

    def _of_atom(self, atom: Expression, answer: bool, known: Known) -> list[Facts]:
        if isinstance(atom, Constant):
            return [NO_FACTS] if bool(atom.value) is answer else []
        term, values = left_by(atom, answer=answer)
        if isinstance(term, FieldOf):
            declared = known(term)
            assert isinstance(declared, Values), "filled in before"
            common = intersection(declared, _rounded(values) if declared.whole else values)
            if common is None or common == declared:
                return [] if common is None else [NO_FACTS]
            values = common
        return [frozenset({(self.number(term), values)})]

    def number(self, term: Expression) -> int:
        """The number of an operand."""
        if term not in self._numbers:
            self._numbers[term] = len(self.terms)
            self.terms.append(term)
        return self._numbers[term]


class _TooManyError(Exception):
    pass


def left_by(atom: Expression, *, answer: bool) -> tuple[Expression, Values]:
    """The operand of an atom, and the values that remain for a result."""
    if not isinstance(atom, Operation) or atom.name not in COMPARISONS:
        return atom, Values(least=True) if answer else Values(most=False)
    (left, right), symbol = atom.operands, atom.name
    if isinstance(left, Constant) or (not isinstance(right, Constant) and repr(right) < repr(left)):
        left, right, symbol = right, left, _SWAPPED[symbol]
    if not answer:
        symbol = _OPPOSITE[symbol]
    if not isinstance(right, Constant):
        return Operation("-", (left, right)), _SIGNS[symbol]
    value = right.value
    match symbol:
        case "==":
            return left, Values(value, value)
        case "!=":
            return left, Values(without=frozenset({value}))
        case "<=":
            return left, Values(most=value)
        case ">=":
            return left, Values(least=value)
        case "<":
            return left, Values(most=_next(value, -math.inf))
        case _:
            return left, Values(least=_next(value, math.inf))


def _next(value: Any, towards: float) -> Any:
    return math.nextafter(value, towards) if isinstance(value, int | float) else value


def _rounded(values: Values) -> Values:
    """The whole numbers between two bounds."""
    least, most = values.least, values.most
    return Values(
        math.ceil(least) if isinstance(least, float) and math.isfinite(least) else least,
        math.floor(most) if isinstance(most, float) and math.isfinite(most) else most,
        values.without,
        whole=True,
    )


def _filled_in(expression: Expression, known: Known) -> Expression:
    """An expression with known fields filled in, constants where these decide."""
    if isinstance(expression, FieldOf):
        value = known(expression)
        return value if isinstance(value, Constant) else expression
    if not isinstance(expression, Operation):
        return expression
    operands = tuple(_filled_in(part, known) for part in expression.operands)
    # Most have nothing to fill in, and rebuilding them takes a sixth of the time here.
    is_same = all(map(operator.is_, operands, expression.operands))
    filled = expression if is_same else Operation(expression.name, operands)
    match filled:
        case Operation("if", (condition, then, otherwise)):
            holds = constant_value(condition)
            return filled if holds is None else then if holds else otherwise
        case Operation(name) if name in COMPARISONS:
            decided = constant_value(filled)
            return filled if decided is None else Constant(decided)
    return filled
