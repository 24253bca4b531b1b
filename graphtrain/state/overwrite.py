"""Putting a described change over an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.codec import StateReader
from graphtrain.state.contents import FORMS
from graphtrain.state.generators import any_generator
from graphtrain.state.reachable import Reached
from graphtrain.storage.strides import placement_of, without_repeats


def overwrite(reached: Reached, change: Mapping[str, Any], reader: StateReader) -> None:
    """Put one change over an object."""
    value, category = reached.value, reached.category
    match change:
        case {"state": state} if category == "generator":
            any_generator(value).set_state(state)
        case {"tensor": torch.Tensor() as saved} if category == "tensor":
            _put_tensor(value, saved, change)
        case {"array": numpy.ndarray() as saved} if category == "array":
            if (value.shape, value.dtype) != (saved.shape, saved.dtype):
                raise CheckpointError(f"its shape is {value.shape} now, and was {saved.shape}")
            value[...] = saved
        case {"bytes": bytes(content)} if category == "buffer":
            value[:] = content
        case {"set": {**described}} if category in FORMS and FORMS[category].is_named:
            removed = tuple(change.get("removed", ()))
            for name in (*described, *removed):
                if not isinstance(name, str) or name in _bookkeeping(reached):
                    raise CheckpointError(f"`{name}` is no state of it")
            parts = {name: reader.unpack(part) for name, part in described.items()}
            FORMS[category].put(value, parts, removed)
        case {"items": items} if category in ("list", "deque", "set", "cell", "mapping"):
            parts = reader.unpack(items)
            FORMS[category].put(value, dict(parts) if category == "mapping" else parts, ())
        case _:
            raise CheckpointError("it is of another type now")


def _bookkeeping(reached: Reached) -> frozenset[str]:
    """The attributes that no change can have."""
    return reached.ignored | {"__class__", "__dict__"}


def _put_tensor(tensor: torch.Tensor, saved: torch.Tensor, change: Mapping[str, Any]) -> None:
    with torch.no_grad():
        if tensor.layout is saved.layout is torch.sparse_coo and tensor.shape == saved.shape:
            tensor.copy_(saved)
        elif _has_form(tensor, saved):
            _fill(tensor, saved)
        else:
            tensor.data = saved
    if "requires_grad" in change and tensor.is_leaf:
        tensor.requires_grad_(change["requires_grad"])
    saved_gradient = change.get("grad")
    if saved_gradient is not None and tensor.grad is not None and tensor.grad.shape == saved_gradient.shape:
        tensor.grad.copy_(saved_gradient)  # which may be a part of a buffer of all gradients
    elif "requires_grad" in change:
        tensor.grad = saved_gradient


def _has_form(tensor: torch.Tensor, saved: torch.Tensor) -> bool:
    """True if values can be put where a tensor has its own, which others may share."""
    if (tensor.shape, tensor.dtype, tensor.layout) != (saved.shape, saved.dtype, saved.layout):
        return False
    # Not every stride is saved: not that of a narrow column of a wide matrix, for instance.
    return tensor.stride() == saved.stride() or (placement_of(tensor) is None and placement_of(saved) is None)


def _fill(tensor: torch.Tensor, saved: torch.Tensor) -> None:
    target, values = without_repeats(tensor.detach()), without_repeats(saved)
    if target.shape != values.shape:
        target, values = tensor.detach(), saved
    try:
        target.copy_(values)
    except RuntimeError:  # windows that overlap: element by element, some of them more than once
        storage = tensor.untyped_storage()
        memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        memory.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
        numbers = torch.arange(memory.numel(), device=tensor.device)
        numbers = numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        memory[numbers.reshape(-1)] = saved.reshape(-1)
