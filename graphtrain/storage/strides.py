"""The strides of tensors that are not contiguous.

Restoring values alone would not give the same bits: PyTorch chooses kernels by strides, and a sum over a tensor with
gaps adds in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

DEVICES = ("cuda", "mps", "mtia", "xpu")
"""The types of devices, besides the CPU, to which a resume moves tensors and whose random generators it restores."""

# A column of a wide matrix would need the memory of the whole matrix: it is restored without gaps.
_MOST_MEMORY_PER_ELEMENT = 8
_CACHE_LINE_BYTES = 64  # kernels are chosen by the offset of a tensor in one


def placement_of(tensor: torch.Tensor) -> list[object] | None:
    """The shape, strides, and offset in a cache line, in elements; None for a contiguous tensor, or one with wide gaps.

    >>> placement_of(torch.zeros(2, 5)[:, :-1])
    [[2, 4], [5, 1], 0]
    >>> placement_of(torch.zeros(2, 5)) is placement_of(torch.zeros(900, 900)[:, 0]) is None
    True
    """
    shape, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
    if not offset and 1 not in shape and tensor.is_contiguous():
        return None  # as nearly all; the strides of a dimension of 1 may be anything
    offset %= _CACHE_LINE_BYTES // tensor.element_size()
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if not tensor.numel() or reach >= _MOST_MEMORY_PER_ELEMENT * without_repeats(tensor).numel():
        return None
    is_usual = not offset and stride == torch.empty(shape, device="meta").stride()
    return None if is_usual else [[*shape], [*stride], offset]


def placed(values: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A tensor with these values, which are without repeats, and the placement that `placement_of` returned.

    >>> repeated = torch.arange(3).expand(4, 3)
    >>> placed(without_repeats(repeated), *placement_of(repeated)).stride()
    (0, 1)
    """
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    tensor = values.new_empty(offset + reach + 1).as_strided(shape, stride, offset)
    without_repeats(tensor).copy_(values)
    return tensor


def without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """Undo `expand`: keep one of the elements of each dimension with stride 0.

    >>> without_repeats(torch.zeros(3, 1).expand(3, 1000)).shape
    torch.Size([3, 1])
    """
    for dimension, step in enumerate(tensor.stride()):
        if step == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in row-major order; for a contiguous tensor, a view of its memory.

    >>> flat_bytes(torch.zeros(5)[::5]).shape  # contiguous, with strides that torch cannot view as bytes
    torch.Size([4])
    """
    flat = tensor.detach().contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
