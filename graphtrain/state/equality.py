"""Whether values are the same as before: by identity, and as values."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy

from graphtrain.state.category import category_of, is_value


def is_identical(now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def are_equal(now: Iterable[Any], before: Iterable[Any]) -> bool:
    now, before = tuple(now), tuple(before)
    return len(now) == len(before) and all(map(is_equal, now, before))


def is_equal(before: Any, now: Any) -> bool:
    """True for one object, and for plain values that are equal: 0.0 and -0.0 are not, and a NaN is itself."""
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(before, numpy.generic):
        return bool(before.dtype == now.dtype and before.tobytes() == now.tobytes())
    if isinstance(before, float):
        return bool(before.hex() == now.hex())
    if isinstance(before, complex):
        return is_equal(before.real, now.real) and is_equal(before.imag, now.imag)
    if isinstance(before, Decimal):
        return str(before) == str(now)
    if isinstance(before, enum.Enum):
        return False
    if is_value(before):
        return bool(before == now)
    match category_of(type(before)):
        case "tuple":
            return len(before) == len(now) and all(map(is_equal, before, now))
        case "method":
            return before.__func__ is now.__func__ and before.__self__ is now.__self__
    return False
