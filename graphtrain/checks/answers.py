"""Which values of guards are consistent.

A guard is split into its comparisons. Each restricts the values of its operands; truth values are consistent if every
operand has a value left, so ``count > 1`` and ``count == 0`` are not.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from graphtrain.kind.parameter import Above
from graphtrain.language.closures import COMPARISONS, constant_value
from graphtrain.language.syntax import Constant, Expression, FieldOf, Operation
from graphtrain.plan.scope import Scope

# The ways in which a guard can have a value are not distinguished beyond this number.
MOST_WAYS = 64

Literal = tuple[Expression, bool]
"""A comparison, or a truth value that is read, and its result."""


class Values(NamedTuple):
    """The remaining values of an operand.

    Attributes:
        least, most: the bounds, both included. Default: none.
        without: excluded values between them. Default: none.
        whole: True if only whole numbers remain. Default: False.

    >>> Values(least=2).both(Values(most=0)) is None
    True
    """

    least: Any = None
    most: Any = None
    without: frozenset[Any] = frozenset()
    whole: bool = False

    def both(self, other: Values) -> Values | None:
        """The intersection; None if it is empty."""
        if self is ANY:  # most fields have no declared bounds
            return other
        try:
            least, most = self.least, self.most
            if least is None or (other.least is not None and other.least > least):
                least = other.least
            if most is None or (other.most is not None and other.most < most):
                most = other.most
            without, whole = self.without | other.without, self.whole or other.whole
            if without and whole:
                without -= {math.inf, -math.inf}  # no whole number is equal to it
                while least in without:
                    least += 1
                while most in without:
                    most -= 1
            if least is not None and most is not None and (least > most or (least == most and least in without)):
                return None
        except TypeError:  # a number and a text: nothing is known about a value that is compared with both
            return self
        return Values(least, most, without, whole)


ANY = Values()


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


_TRUTH = {answer: Values(least=answer, most=answer, whole=True) for answer in (False, True)}
# The sign of the difference of two operands.
_SIGNS = {
    "<": Values(-1, -1, whole=True),
    "<=": Values(-1, 0, whole=True),
    "==": Values(0, 0, whole=True),
    "!=": Values(-1, 1, frozenset({0}), whole=True),
    ">=": Values(0, 1, whole=True),
    ">": Values(1, 1, whole=True),
}
_OPPOSITE = {"<": ">=", "<=": ">", "==": "!=", "!=": "==", ">=": "<", ">": "<="}
_SWAPPED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">=": "<=", ">": "<"}

# Knowledge of something that is read: its value, or the values it can have.
Known = Callable[[FieldOf], Constant | Values]


class Answers(NamedTuple):
    """Consistent results of comparisons.

    Attributes:
        literals: their numbers in a `Table`, each one bit.
        values: the remaining values of every operand, by its number.
    """

    literals: int
    values: Mapping[int, Values]

    def both(self, other: Answers) -> Answers | None:
        """These and the others together; None if they are not consistent."""
        if not other.literals & ~self.literals:
            return self
        if not self.literals:
            return other
        values = dict(self.values)
        for term, left in other.values.items():
            if term in values:
                common = left.both(values[term])
                if common is None:
                    return None
                left = common
            values[term] = left
        return Answers(self.literals | other.literals, values)


NO_ANSWERS = Answers(0, {})


def together(known: Iterable[Answers], further: Iterable[Answers]) -> list[Answers]:
    """The consistent pairs, one of each."""
    further = tuple(further)
    return [common for first in known for second in further if (common := first.both(second)) is not None]


class Table:
    """The atoms of the guards of one graph, numbered, because comparing large expressions is slow.

    Attributes:
        literals: by number.
    """

    def __init__(self) -> None:
        self.literals: list[Literal] = []
        self._answers: dict[Literal, list[Answers]] = {}
        self._terms: dict[Expression, int] = {}

    def ways_to_answer(self, expression: Expression, known: Known) -> dict[bool, tuple[Answers, ...] | None]:
        """The ways in which a guard can have each value, empty if it cannot; None if there are more than `MOST_WAYS`.

        >>> from graphtrain.language.syntax import parse
        >>> known = lambda read: Values(least=0, whole=True)
        >>> ways = Table().ways_to_answer(parse("a.count > 1 and a.count == 0"), known)
        >>> len(ways[True]), len(ways[False])
        (0, 2)
        """
        filled = _filled_in(expression, known)
        ways: dict[bool, tuple[Answers, ...] | None] = {}
        for answer in (True, False):
            try:
                ways[answer] = tuple(self._ways(filled, answer, known))
            except _TooManyError:
                ways[answer] = None
        return ways

    def _ways(self, expression: Expression, answer: bool, known: Known) -> list[Answers]:
        name = expression.name if isinstance(expression, Operation) else ""
        if name not in ("not", "and", "or", "if"):
            literal = (expression, answer)
            if literal not in self._answers:
                self._answers[literal] = self._of_atom(*literal, known)
            return self._answers[literal]
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
            ways = [way for operand in operands for way in self._ways(operand, answer, known)]
        else:
            ways = [NO_ANSWERS]
            for operand in operands:
                ways = together(ways, self._ways(operand, answer, known))
                if len(ways) > MOST_WAYS:
                    raise _TooManyError
        if len(ways) > MOST_WAYS:
            raise _TooManyError
        return list({way.literals: way for way in ways}.values())

    def _of_atom(self, atom: Expression, answer: bool, known: Known) -> list[Answers]:
        if isinstance(atom, Constant):
            return [NO_ANSWERS] if bool(atom.value) is answer else []
        term, values = _left_by(atom, answer)
        left = {term: values}
        if isinstance(term, Operation) and term.name == "-":  # the operands bound each other
            greater, less = term.operands[0], term.operands[-1]
            if values.most is not None and values.most <= 0:
                left |= _bounded(less, greater, known)
            if values.least is not None and values.least >= 0:
                left |= _bounded(greater, less, known)
        for part, of_atom in left.items():
            if isinstance(part, FieldOf):
                declared = known(part)
                assert not isinstance(declared, Constant), "filled in before"
                common = declared.both(_rounded(of_atom) if declared.whole else of_atom)
                if common is None:
                    return []
                left[part] = common
        self.literals.append((atom, answer))
        number = len(self.literals) - 1
        return [Answers(1 << number, {self._terms.setdefault(part, len(self._terms)): left[part] for part in left})]


def _bounded(greater: Expression, less: Expression, known: Known) -> dict[Expression, Values]:
    """The values of two fields, one not less than the other."""
    if not (isinstance(greater, FieldOf) and isinstance(less, FieldOf)):
        return {}
    least, most = known(less), known(greater)
    assert isinstance(least, Values) and isinstance(most, Values), "filled in before"
    return {greater: Values(least=least.least), less: Values(most=most.most)}


class _TooManyError(Exception):
    pass


def _left_by(atom: Expression, answer: bool) -> tuple[Expression, Values]:
    """The operand of an atom, and the values that remain for a result."""
    if not isinstance(atom, Operation) or atom.name not in COMPARISONS:
        return atom, _TRUTH[answer]
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
