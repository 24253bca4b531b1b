"""Batches: how many samples they hold, moving them to a device, and the trace that recognizes one after a resume."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.state import content
else:
    torch = lazy_import("torch")
    content = lazy_import("graphtrain.state.content")

NESTS = frozenset({dict, list, tuple})
NOTHING = object()
"""Takes the place of a batch when an iterator has ended."""
_MOST_TRACED = 64 * 2**10


def count_samples(batch: Any) -> int:
    """The samples of a batch: the first dimension of its first tensor.

    >>> count_samples((torch.zeros(8, 3), torch.zeros(8)))
    8
    """
    first = batch  # most batches begin with their tensor: 0.3 us instead of 2 for a full search
    while type(first) in (tuple, list) and first:
        first = first[0]
    tensor = first if isinstance(first, torch.Tensor) else next(tensors_of(batch), None)
    return tensor.size(0) if tensor is not None and tensor.dim() else 1  # a nested tensor has no shape, but a size


def move(batch: Any, device: torch.device) -> Any:
    """A nest of mappings, tuples, lists and dataclasses with every tensor on the device.

    Other objects with a method `to`, such as a `PackedSequence`, move themselves.

    >>> [tensor.device.type for tensor in move([torch.zeros(2), {"mask": torch.ones(2)}], torch.device("meta"))[:1]]
    ['meta']
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        parts = {key: move(part, device) for key, part in batch.items()}
        return parts if type(batch) is dict else type(batch)(parts)  # type: ignore[call-arg]
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, tuple | list):
        moved = [move(part, device) for part in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    if fields := _fields_of(batch):
        rebuilt = copy.copy(batch)
        for name, part in fields.items():
            object.__setattr__(rebuilt, name, move(part, device))  # a frozen one too
        return rebuilt
    return batch


def _fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that have a value; none of anything else."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a nest of tuples, lists, mappings and dataclasses, in order.

    >>> [tensor.item() for tensor in tensors_of({"inputs": [torch.tensor(1), "a"], "target": torch.tensor(2)})]
    [1, 2]
    """
    parts: Iterable[Any] = batch if isinstance(batch, tuple | list) else ()
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        parts = batch.values()
    elif not parts and not callable(getattr(batch, "to", None)):
        parts = _fields_of(batch).values()
    for part in parts:
        yield from tensors_of(part)


def as_tuples(batch: Any) -> Any:
    """The batch with tuples in place of its dicts and lists, whose items may be replaced later."""
    if type(batch) not in NESTS:
        return batch
    parts = tuple(batch.values()) if type(batch) is dict else tuple(batch)
    return parts if NESTS.isdisjoint(map(type, parts)) else tuple(map(as_tuples, parts))


def trace(parts: Any) -> dict[str, Any]:
    """A hash of the tensors of a batch, as `as_tuples` returns it, and how often they were changed in place.

    Only plain tensors on the CPU are hashed; above 64 KiB, a sample of their values.

    >>> tensor = torch.zeros(2); before = trace((tensor, "a")); tensor += 1; after = trace((tensor,))
    >>> before["versions"], after["versions"], before["hash"] == after["hash"]
    (0, 1, False)
    """
    tensors = list(_traced(parts))
    hashed = content.content_hash(tensors, most_bytes=_MOST_TRACED)[:16]
    return {"versions": sum([tensor._version for tensor in tensors]), "hash": hashed}


def _traced(parts: Any) -> Iterator[torch.Tensor]:
    if isinstance(parts, tuple):
        for part in parts:
            yield from _traced(part)
    elif isinstance(parts, torch.Tensor):
        is_special = parts.layout is not torch.strided or parts.is_quantized or parts.is_nested or parts.is_inference()
        yield from [] if is_special or parts.device.type != "cpu" else [parts]
