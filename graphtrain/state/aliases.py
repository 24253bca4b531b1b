"""Objects that a value shares with what is reachable: a batch is an item of a list of batches, for instance.

A value in transit is saved by itself. So that what changes it in place changes the list as well after a resume, the
places in it that hold reachable objects are saved beside it.
"""

from __future__ import annotations

from typing import Any

import torch

from graphtrain.state.nested import at, replaced
from graphtrain.state.reachable import Reachable

_SHARED = frozenset({"tensor", "array", "list", "mapping", "object", "buffer"})


def aliases_of(value: Any, reachable: Reachable) -> list[list[Any]]:
    """Keys and path of each reachable object in nested containers; what is inside of one is not looked into."""
    aliases: list[list[Any]] = []

    def note(part: Any, keys: tuple[Any, ...]) -> Any:
        reached = reachable.find(part)
        if reached is None or reached.category not in _SHARED:
            return part
        aliases.append([list(keys), reached.path])
        return None  # not looked into

    replaced(value, note)
    return aliases


def with_aliases(value: Any, aliases: Any, reachable: Reachable) -> Any:
    """The value with the reachable objects in their places again; not those of another form than what is there."""
    places: dict[tuple[Any, ...], Any] = {}
    for keys, path in aliases:
        reached, part = reachable.by_path.get(path), at(value, tuple(keys))
        if reached is not None and reached.category in _SHARED and _is_alike(part, reached.value):
            places[tuple(keys)] = reached.value
    return replaced(value, lambda part, keys: places.get(keys, part)) if places else value


def _is_alike(part: Any, other: Any) -> bool:
    if isinstance(part, torch.Tensor) and isinstance(other, torch.Tensor):
        return (part.shape, part.dtype, part.device) == (other.shape, other.dtype, other.device)
    return type(part) is type(other)
