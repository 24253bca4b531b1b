"""Marks of tensors and arrays: what changes when they do, without a copy of them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy
import torch

from graphtrain.state.buffers import read_buffer
from graphtrain.state.contents import SAMPLES
from graphtrain.state.equality import is_equal
from graphtrain.state.reachable import Reached

# Of larger tensors and arrays a sample is hashed.
WHOLE_BYTES = 64 * 2**10

# The same of arrays, which have no version that tells of a write.
_WHOLE_BYTES_OF_ARRAYS = 2 * 2**20

# The length of the mark of a strided tensor.
_OF_A_USUAL_TENSOR = 5


def is_marked(reached: Reached) -> bool:
    """True for what changes where it is: tensors and arrays, and other buffers of data."""
    if reached.category == "buffer":
        return reached.is_data
    return not reached.is_covered and reached.category in ("tensor", "array")


def mark_of(reached: Reached) -> Any:
    """What changes when a tensor or an array does: its form, and a hash of it or, where it is large, of a sample.

    Of other buffers of data it is the hash.

    Of a tensor of a usual form also its place and its version, which tell more where a sample does not.
    """
    value = reached.value
    if reached.category == "buffer":
        return _hash(read_buffer(value))
    if reached.category == "array":
        content = tuple(value.flat) if value.dtype.hasobject else _hash(_sample_of_array(value))
        return value.shape, str(value.dtype), content
    try:
        content = hash_of_values(value)
    except (RuntimeError, NotImplementedError):  # of a class with other memory than torch's
        return (type(value), tuple(value.shape))
    is_usual = value.layout is torch.strided and not torch.nn.parameter.is_lazy(value) and not value.is_meta
    place = (0 if value.is_inference() else value._version, value.data_ptr()) if is_usual else ()
    shape = None if torch.nn.parameter.is_lazy(value) else value.shape
    return (shape, value.dtype, *place, content)


def is_as_marked(reached: Reached, before: Any) -> bool:
    """True if a tensor or an array looks as it did when it was marked."""
    now = mark_of(reached)
    if reached.category == "buffer":
        return bool(before == now)
    if reached.category == "array":
        return bool(before[:2] == now[:2]) and is_equal(before[2], now[2])
    # Worker processes that are not forked get tensors in shared memory, to which those here move as well.
    is_moved = len(before) == len(now) == _OF_A_USUAL_TENSOR and reached.value.is_shared()
    return bool(before == now or (is_moved and (before[:3], before[4]) == (now[:3], now[4])))


def has_content(reached: Reached, mark: Any) -> bool:
    """True if a tensor or an array has the marked values, wherever they are and however they came there."""
    now = mark_of(reached)
    return bool((now[0], now[1], now[-1]) == (mark[0], mark[1], mark[-1]))


def content_of(reached: Reached) -> Any:
    """What identifies the content of a tensor or an array in any process; None where that is not known."""
    mark = mark_of(reached)
    return (tuple(mark[0]), str(mark[1]), mark[-1]) if len(mark) > 2 and isinstance(mark[-1], bytes) else None


def hash_of_values(tensor: torch.Tensor) -> bytes:
    """A hash of a tensor's values; of more than 64 KiB some of them, evenly spaced."""
    return _hash(b"".join(map(_bytes_of_strided, _strided_parts(tensor))))


def _strided_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of a usual form that have the content of this one; none for one without memory."""
    tensor = tensor.detach().as_subclass(torch.Tensor)
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
        return ()
    if tensor.is_quantized:
        return (tensor.int_repr(),)
    if tensor.is_nested:
        return tuple(tensor.unbind())
    match tensor.layout:
        case torch.strided:
            return (tensor,)
        case torch.sparse_coo:
            return tensor._indices(), tensor._values()
        case torch.sparse_csr | torch.sparse_bsr:
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def _bytes_of_strided(tensor: torch.Tensor) -> bytes:
    flat = tensor.reshape(-1) if tensor.numel() * tensor.element_size() <= WHOLE_BYTES else _sample(tensor)
    return bytes(_contiguous(flat).view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    # `contiguous` leaves a single element with whatever strides it has.
    return tensor.resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    numbers = torch.arange(0, tensor.numel(), max(1, tensor.numel() // SAMPLES), device=tensor.device)
    return torch.take(tensor, numbers)


def _sample_of_array(array: Any) -> bytes:
    step = max(1, array.size // SAMPLES) if array.nbytes > _WHOLE_BYTES_OF_ARRAYS else 1
    return numpy.ascontiguousarray(array.flat[::step]).tobytes()


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()
