"""Whether values are the same as before: by identity, and as values."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from graphtrain.state.category import category_of
from graphtrain.state.content import content_hash
from graphtrain.state.contents import FORMS


def is_identical(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """True for the very same objects in the same order."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def are_equal(now: Iterable[Any], before: Iterable[Any]) -> bool:
    now, before = tuple(now), tuple(before)
    return len(now) == len(before) and all(map(is_equal, now, before))


def hold_the_same(one: Any, other: Any) -> bool:
    """True for what `is_equal` holds of, and for two containers of such values: of them one may be a copy.

    >>> hold_the_same({"names": {"a", "b"}}, {"names": {"b", "a"}}), hold_the_same([0.0], [-0.0])
    (True, False)
    """
    if is_equal(one, other):
        return True
    category = category_of(type(one))
    if type(one) is not type(other) or category not in ("list", "tuple", "deque", "mapping", "set"):
        return False
    if category == "set":
        return len(one) == len(other) and content_hash(one) == content_hash(other)
    (keys, parts), (other_keys, other_parts) = (FORMS[category].contents(value) for value in (one, other))
    return (
        are_equal(keys, other_keys) and len(parts) == len(other_parts) and all(map(hold_the_same, parts, other_parts))
    )


def is_equal(before: Any, now: Any) -> bool:
    """True for one object, and for plain values that are equal: 0.0 and -0.0 are not, and a NaN is itself."""
    if before is now:
        return True
    if type(before) is not type(now) or isinstance(before, enum.Enum):
        return False
    match category_of(type(before)):
        case "value":
            return content_hash(before) == content_hash(now)
        case "set" if isinstance(before, frozenset):
            return len(before) == len(now) and content_hash(before) == content_hash(now)
        case "tuple":
            return len(before) == len(now) and all(map(is_equal, before, now))
        case "method":
            return before.__func__ is now.__func__ and before.__self__ is now.__self__
    return False
