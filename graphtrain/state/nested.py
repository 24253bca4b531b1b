"""Values in nested containers: finding them by their keys, and putting others in their places."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

_MOST_DEPTH = 100
CONSTANTS = frozenset({type(None), bool, int, float, str, bytes})


def replaced(
    value: Any,
    replace: Callable[[Any, tuple[Any, ...]], Any],
    keys: tuple[Any, ...] = (),
    kept: frozenset[type] = CONSTANTS,
) -> Any:
    """A value with other parts where `replace` gives others; the very same where it gives none.

    Arguments:
        replace: is given a part and the keys that lead to it.
        kept: types of parts that it is not asked about.
    """
    kind = type(value)
    if (other := replace(value, keys)) is not value or len(keys) > _MOST_DEPTH:
        return other
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        others = {
            key: other
            for key, part in value.items()
            if type(part) not in kept and (other := replaced(part, replace, (*keys, key), kept)) is not part
        }
        if others:
            value = copy.copy(value)  # with its attributes, such as those of a module's `state_dict`
            value.update(others)
    elif kind in (list, tuple, collections.deque):
        parts = [
            part if type(part) in kept else replaced(part, replace, (*keys, number), kept)
            for number, part in enumerate(value)
        ]
        if any(part is not before for part, before in zip(parts, value, strict=True)):
            return collections.deque(parts, value.maxlen) if isinstance(value, collections.deque) else kind(parts)
    return value


def at(value: Any, keys: tuple[Any, ...]) -> Any:
    """What is in a place of nested containers; None where there is no such place."""
    for key in keys:
        try:
            value = value.get(key) if isinstance(value, dict) else value[key]  # a `defaultdict` must not grow
        except (LookupError, TypeError):
            return None
    return value
