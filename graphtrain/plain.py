"""Plain values (numbers, texts, lists, mappings): as JSON, as short texts, and compared."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from graphtrain.printable import one_line


def is_scalar(value: Any) -> bool:
    """True for None, a number, a text or bytes."""
    return value is None or isinstance(value, bool | int | float | str | bytes)


def json_value(value: Any) -> Any:
    """A value as JSON has it: NaN and infinities are texts, numbers of NumPy and torch are Python's.

    >>> json_value({"loss": math.nan, "sizes": (1, 2)})
    {'loss': 'nan', 'sizes': [1, 2]}
    """
    if value is None or type(value) in (str, int, bool):  # nearly all are
        return value
    if isinstance(value, Mapping):
        return {str(name): json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    if not isinstance(value, int | float) and hasattr(value, "item"):
        value = value.item()  # a number of NumPy, or a tensor of one value
    if isinstance(value, float) and not math.isfinite(value):
        return repr(float(value))
    return value


def brief(value: Any) -> Any:
    """A value for a status: the text of a Python literal is evaluated, and a long value is shortened.

    >>> brief("0.001"), brief("'adam'"), brief("PosixPath('data')"), brief("10 epochs"), brief([1, 2])
    (0.001, 'adam', "PosixPath('data')", '10 epochs', [1, 2])
    """
    if isinstance(value, str):
        with suppress(SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
            value = ast.literal_eval(value)
    return value if len(str(value)) <= 200 else one_line(str(value), 200)


def is_equal(value: Any, other: Any) -> bool:
    """True if two plain values are equal; a NaN equals a NaN, and a list a tuple.

    >>> is_equal({"best": [math.nan]}, {"best": [math.nan]}), is_equal([1], [1, 2])
    (True, False)
    """
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(is_equal(value[key], other[key]) for key in value)
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(is_equal, value, other))
    return bool(value == other or (value != value and other != other))
