"""The strides of tensors that are not contiguous, and devices.

Values alone are not enough for a bitwise continuation: a sum over a slice with gaps runs in another order, and kernels
are chosen by strides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

DEVICES = ("cuda", "mps", "mtia", "xpu")
"""The types of devices to which a resume moves tensors, and of which it restores the random generators."""

# A narrow column of a wide matrix would need the memory of all of it: it is stored without gaps.
_MOST_MEMORY_PER_ELEMENT = 8
CACHE_LINE_BYTES = 64  # kernels are chosen by the offset of a tensor in one


def placement_of(tensor: torch.Tensor) -> list[object] | None:
    """Shape, strides, and offset in a cache line, in elements; None if it is contiguous, or they are not kept.

    >>> placement_of(torch.zeros(2, 5)[:, :-1])
    [[2, 4], [5, 1], 0]
    >>> placement_of(torch.zeros(2, 5)) is placement_of(torch.zeros(900, 900)[:, 0]) is None
    True
    """
    if is_usual(tensor) or not tensor.numel():
        return None
    offset = tensor.storage_offset() % (CACHE_LINE_BYTES // tensor.element_size())
    usual = torch.empty(tensor.shape, device="meta").stride()
    if not offset and tensor.stride() == usual:
        return None
    used = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and 0 < step <= used:
            return None  # elements that overlap cannot be written to
        used += (size - 1) * step
    if used >= _MOST_MEMORY_PER_ELEMENT * without_repeats(tensor).numel():
        return None
    return [[*tensor.shape], [*tensor.stride()], offset]


def placed(values: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A tensor of these values, without repeats, with the placement that `placement_of` returned.

    >>> repeated = torch.arange(3).expand(4, 3)
    >>> placed(without_repeats(repeated), *placement_of(repeated)).stride()
    (0, 1)
    """
    sizes = [size if step else 1 for size, step in zip(shape, stride, strict=True)]
    used = sum((size - 1) * step for size, step in zip(sizes, stride, strict=True))
    memory = torch.empty(offset + used + 1, dtype=values.dtype, device=values.device)
    memory.as_strided(sizes, stride, offset).copy_(values)
    return memory.as_strided(shape, stride, offset)


def is_usual(tensor: torch.Tensor) -> bool:
    """True for a contiguous tensor in host memory, of which `placement_of` is None; False: it may be one all the same.

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


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """Undo `expand`: keep one of each of the elements that a tensor repeats.

    >>> without_repeats(torch.zeros(3, 1).expand(3, 1000)).shape
    torch.Size([3, 1])
    """
    for dimension, step in enumerate(tensor.stride()):
        if step == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements, in the order of its dimensions; those of a contiguous tensor are its own memory.

    >>> flat_bytes(torch.zeros(5)[::5]).shape  # contiguous, with strides that torch cannot view as bytes
    torch.Size([4])
    """
    flat = tensor.detach().contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
