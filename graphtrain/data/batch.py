"""What a batch is made of: how many samples it holds, and moving it to a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphtrain.errors import UsageError


def sample_counter() -> Callable[[Any], int]:
    """A function that counts the samples of a batch: the first dimension of its first tensor.

    >>> sample_counter()((torch.zeros(8, 3), torch.zeros(8)))
    8
    """

    def count(batch: Any) -> int:
        first = batch  # most batches begin with their tensor: 0.3 us instead of 2 for looking everywhere
        while type(first) in (tuple, list) and first:
            first = first[0]
        tensor = first if isinstance(first, torch.Tensor) else first_tensor(batch)
        if tensor is None:
            return 1
        shape = tensor.shape
        return shape[0] if shape else 1

    return count


def first_tensor(batch: Any) -> torch.Tensor | None:
    """The first tensor in a nest of tuples, lists and mappings."""
    if isinstance(batch, torch.Tensor):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((found for part in parts if (found := first_tensor(part)) is not None), None)


def batch_mover(device: torch.device) -> Callable[[Any], Any] | None:
    """A function that moves a batch to the device; None on the CPU, where even an idle `to` costs 0.4 us a tensor."""
    if device.type == "cpu":
        return None
    return lambda batch: move(batch, device)


def move(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor, and everything else that has a method `to`, on the device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return _rebuilt(batch, {key: move(part, device) for key, part in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(part, device) for part in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(move(part, device) for part in batch)
    return batch.to(device) if callable(getattr(batch, "to", None)) else batch


def _rebuilt(original: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    if type(original) is dict:
        return parts
    try:
        return type(original)(parts)  # type: ignore[call-arg]
    except TypeError:
        raise UsageError(
            f"a batch of type {type(original).__name__} cannot be moved to a device: it is not made from a dict",
            "return plain dicts, tuples, lists and tensors from the loader",
        ) from None
