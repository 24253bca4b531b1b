"""When something periodic is due: ``"100 steps"``, ``"0.25 epochs"``, ``["1 epochs", "10 minutes"]``, ``"never"``."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any

# Units that are multiples of another one; a graph's clock only needs the second.
MULTIPLES: dict[str, tuple[str, int]] = {"minutes": ("seconds", 60), "hours": ("seconds", 3600)}

ONCE = "once"

_TERM = re.compile(r"\s*(\d{1,15}(?:\.\d{1,15})?|\d{1,15}/\d{1,15})\s+([A-Za-z_]\w*)\s*", re.ASCII)
_EXPECTED = 'expected "<number> <unit>", "once", a list of these, or "never"'


@dataclass(frozen=True)
class Term:
    """One amount of one unit, exact: ``0.29 epochs`` is 29/100, never 0.28999."""

    amount: Fraction
    unit: str

    def __str__(self) -> str:
        return f"{decimal(self.amount)} {self.unit}"

    @property
    def base(self) -> Term:
        """The same amount in the unit a clock counts: ``2 minutes`` is ``120 seconds``."""
        unit, factor = MULTIPLES.get(self.unit, (self.unit, 1))
        return Term(self.amount * factor, unit)


def decimal(value: Fraction) -> str:
    """An exact number as people write it.

    >>> decimal(Fraction(1, 4)), decimal(Fraction(1, 3)), decimal(Fraction(3))
    ('0.25', '1/3', '3')
    """
    shown = f"{(Decimal(value.numerator) / value.denominator).normalize():f}"
    return shown if Fraction(shown) == value else str(value)


@dataclass(init=False, repr=False, unsafe_hash=True, slots=True)
class Trigger:
    """One or more amounts, any of which fires.

    As `every`, a trigger is due when ``floor(clock / amount)`` has grown since the node last fired; as `after`, when
    the clock has reached the amount. The units are those of the graph's clock; and minutes and hours, if that counts
    seconds.

    Arguments:
        text: ``"<number> <unit>"``, ``"once"`` (due until the node has run), a list of those, or ``"never"``. Numbers
            are decimal (``0.25``) or ratios (``1/3``), kept exact, and positive.

    Attributes:
        terms: the amounts.
        once: True if it is due until the node has run.

    Raises:
        ValueError: the text is not a trigger.

    >>> Trigger(["1 epochs", "10 minutes"])
    Trigger('1 epochs', '10 minutes')
    >>> Trigger("0.29 epochs").terms[0].amount
    Fraction(29, 100)
    >>> Trigger("often")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: expected "<number> <unit>", "once", a list of these, or "never"; got...
    """

    terms: tuple[Term, ...]
    once: bool

    def __init__(self, text: str | Iterable[str]) -> None:
        texts: list[object] = list(text) if isinstance(text, Iterable) and not isinstance(text, str) else [text]
        if not texts:
            raise ValueError(f"{_EXPECTED}; got an empty list")
        self.once = ONCE in texts
        amounts = [text for text in texts if text != ONCE] if texts != ["never"] else []
        if wrong := [text for text in amounts if not isinstance(text, str)]:
            raise ValueError(f"{_EXPECTED}; got {wrong[0]!r}")
        self.terms = tuple(map(_term, map(str, amounts)))

    @property
    def texts(self) -> list[str]:
        """The texts of its amounts, as a graph has them."""
        return [*([ONCE] if self.once else []), *map(str, self.terms)] or ["never"]

    @property
    def is_never(self) -> bool:
        """True if it is never due."""
        return not (self.once or self.terms)

    def __repr__(self) -> str:
        return f"Trigger({', '.join(map(repr, self.texts))})"

    def __str__(self) -> str:
        return " or ".join(self.texts)


@functools.lru_cache(maxsize=1024)  # 15 us; a check of `fit` reads 12 of them
def _term(text: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError(f"{_EXPECTED}; got {text!r}")
    number, unit = match.groups()
    numerator, _, denominator = number.partition("/")
    if not Fraction(numerator) or not Fraction(denominator or 1):
        raise ValueError(f"the amount of a trigger must be greater than 0; got {text!r}")
    return Term(Fraction(number), unit)


def known_units(units: Iterable[str]) -> list[str]:
    """The units a trigger may use on a clock that counts `units`: those, and the multiples of them.

    >>> known_units(["steps", "seconds"])
    ['steps', 'seconds', 'minutes', 'hours']
    """
    base_units = list(units)
    return [*base_units, *(unit for unit, (base, _) in MULTIPLES.items() if base in base_units)]


def as_fraction(count: Any) -> Fraction:
    """The value of a counter, without rounding: an integer, a fraction or a float, also of NumPy.

    >>> as_fraction(0.5), as_fraction(3)
    (Fraction(1, 2), Fraction(3, 1))
    """
    return Fraction(count if isinstance(count, Rational | float) else float(count))


def next_multiple(value: int | Fraction, amount: int | Fraction) -> int | Fraction:
    """The first multiple of `amount` beyond `value`; a whole number where both are.

    >>> next_multiple(7, Fraction(5)), next_multiple(7, Fraction(2, 5))
    (10, Fraction(36, 5))
    """
    if value.denominator == amount.denominator == 1:  # fractions would take 4 us more each time that a node fires
        return (value.numerator // amount.numerator + 1) * amount.numerator
    return (math.floor(value / amount) + 1) * amount
