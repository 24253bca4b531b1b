"""What the items of a large container hold, at a glance: containers that are not looked into may be changed there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphtrain.state.category import category_of
from graphtrain.state.contents import FORMS

# Of the items of a larger container some, evenly spaced: to look at them takes a millisecond.
_MOST_ITEMS = 256
_MOST_PARTS = 64
_DEPTH = 2
_DEEPER = frozenset({"object", "list", "tuple", "mapping", "deque"})


def held_by_items(items: Sequence[Any]) -> list[Any]:
    """What items hold: their attributes, items and versions, two levels deep.

    >>> from graphtrain.state.equality import are_equal
    >>> samples = [{"seen": 0}, {"seen": 0}]
    >>> before = held_by_items(samples); samples[1]["seen"] += 1; are_equal(held_by_items(samples), before)
    False
    """
    held: list[Any] = []
    for item in items[:: max(1, len(items) // _MOST_ITEMS)]:
        _add(item, held, _DEPTH)
    return held


def _add(value: Any, held: list[Any], depth: int) -> None:
    category = category_of(type(value))
    if category == "tensor":
        held.append(0 if value.is_inference() else value._version)
    elif category in _DEEPER:
        keys, parts = FORMS[category].contents(value)
        held.append(len(parts))
        if len(parts) <= _MOST_PARTS:
            held += keys
            held += parts
            if depth:
                for part in parts:
                    if category_of(type(part)) not in ("value", "skipped"):
                        _add(part, held, depth - 1)
