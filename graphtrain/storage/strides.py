"""The placement in memory of tensors that are not contiguous.

Values alone are not enough for a bitwise continuation: a sum over a slice with gaps runs in another order, and kernels
are chosen by strides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# A narrow column of a wide matrix would need the memory of all of it: it is stored without gaps.
_MOST_MEMORY_PER_ELEMENT = 8
CACHE_LINE_BYTES = 64  # kernels are chosen by the offset of a tensor in one


@dataclass(frozen=True)
class Placement:
    """Sizes, strides and the distance from a cache line, all in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def placement_of(tensor: torch.Tensor) -> Placement | None:
    """The placement of a strided tensor; None if it is contiguous, or if its placement is not kept.

    >>> placement_of(torch.zeros(2, 5)[:, :-1])
    Placement(shape=(2, 4), stride=(5, 1), offset=0)
    >>> placement_of(torch.zeros(2, 5)) is placement_of(torch.zeros(900, 900)[:, 0]) is None
    True
    """
    offset = int(tensor.storage_offset()) % (CACHE_LINE_BYTES // tensor.element_size())
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    if not tensor.numel() or (not offset and stride == _contiguous(shape)):
        return None
    used = 0
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1 and step):
        if step <= used:
            return None  # overlapping elements cannot be written to
        used += (size - 1) * step
    if used >= _MOST_MEMORY_PER_ELEMENT * without_repeats(tensor).numel():
        return None
    return Placement(shape, stride, offset)


def is_usual(tensor: torch.Tensor) -> bool:
    """True for a contiguous tensor in host memory, of which `placement_of` is None.

    False means that it has to be examined further.

    >>> is_usual(torch.zeros(2, 5)), is_usual(torch.zeros(2, 5)[:, :-1]), is_usual(torch.zeros(5)[1:])
    (True, False, False)
    """
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.storage_offset()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and 1 not in tensor.shape  # whose strides may be anything
    )


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """Undo `expand`: keep one of each of the elements that a tensor repeats.

    >>> without_repeats(torch.zeros(3, 1).expand(3, 1000)).shape
    torch.Size([3, 1])
    """
    for dimension, step in enumerate(tensor.stride()):
        if step == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, with the usual strides if they are contiguous, as torch requires to view them as bytes.

    >>> torch.zeros(5)[::5].stride(), torch.zeros(5)[::5].is_contiguous(), in_order(torch.zeros(5)[::5]).stride()
    ((5,), True, (1,))
    """
    usual = _contiguous(tuple(tensor.shape))
    return tensor.as_strided(tensor.shape, usual) if tensor.is_contiguous() and tensor.stride() != usual else tensor


def placed(values: torch.Tensor, placement: Placement) -> torch.Tensor:
    """A tensor of these values, without repeats, placed in memory as `placement` says.

    Raises:
        ValueError: the values do not fit.

    >>> repeated = torch.arange(3).expand(4, 3)
    >>> placed(without_repeats(repeated), placement_of(repeated)).stride()
    (0, 1)
    """
    shape, stride, offset = placement.shape, placement.stride, placement.offset
    sizes = tuple(min(size, 1) if step == 0 else size for size, step in zip(shape, stride, strict=True))
    used = sum((size - 1) * step for size, step in zip(sizes, stride, strict=True))
    if sizes != tuple(values.shape) or 0 in sizes or offset < 0:
        raise ValueError("a tensor of another shape than its values")
    if used >= _MOST_MEMORY_PER_ELEMENT * values.numel() or offset >= CACHE_LINE_BYTES:
        raise ValueError("a tensor with more memory than it can have had")
    memory = torch.empty(offset + used + 1, dtype=values.dtype, device=values.device)
    memory.as_strided(sizes, stride, offset).copy_(values)
    return memory.as_strided(shape, stride, offset)


DEVICES = ("cuda", "mps", "mtia", "xpu")
"""The types of devices to which a resume moves tensors, and of which it restores the random generators."""


def name_of(device: torch.device) -> str:
    """The name under which a checkpoint has a device: of the current one without its number.

    Each rank of a host has another one, and what they save has to be the same bytes.

    >>> name_of(torch.device("cpu"))
    'cpu'
    """
    is_current = device.type == "cuda" and device.index in (None, torch.cuda.current_device())
    return device.type if is_current else str(device)
