"""The memory of tensors and arrays: which of them share it, and views of it."""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy
import torch


@final
class MemoryIndex:
    """Named tensors and arrays by address, in regions of memory that do not overlap."""

    def __init__(self, named: Iterable[tuple[str, Any]]) -> None:
        self._regions: list[tuple[int, int, list[tuple[str, Any]]]] = []  # where each begins, ends, and what is in it
        begin, last, within = 0, 0, list[tuple[str, Any]]()
        for start, end, pair in sorted([(*span_of(pair[1]), pair) for pair in named], key=operator.itemgetter(0)):
            if start >= last:
                begin, last, within = start, end, []
                self._regions.append((begin, last, within))
            elif end > last:
                last = end
                self._regions[-1] = begin, last, within
            within.append(pair)

    def add(self, name: str, value: Any) -> None:
        """Add a tensor or an array."""
        start, end = span_of(value)
        near = self._near(start, end)
        starts, ends, named = zip(*self._regions[near], (start, end, [(name, value)]), strict=True)
        self._regions[near] = [(min(starts), max(ends), [*itertools.chain(*named)])]

    def overlapping(self, value: Any) -> list[tuple[str, Any]]:
        """Those whose memory range overlaps that of a tensor or an array."""
        start, end = span_of(value)
        near = [pair for _, _, named in self._regions[self._near(start, end)] for pair in named]
        return [pair for pair in near if start < span_of(pair[1])[1] and span_of(pair[1])[0] < end]

    def _near(self, start: int, end: int) -> slice:
        first = bisect.bisect_right(self._regions, start, key=operator.itemgetter(1))
        return slice(first, bisect.bisect_left(self._regions, end, first, key=operator.itemgetter(0)))


def span_of(value: Any) -> tuple[int, int]:
    """The memory range of a tensor or an array: the addresses of its first byte and after its last; (0, 0) for none.

    Read-only arrays have none: they may share memory without harm.
    """
    try:
        if isinstance(value, torch.Tensor) and value.is_contiguous():  # of which there may be 100,000
            start = int(value.data_ptr())
            return start, start + value.nbytes if start else 0
        start, size, strides = _layout_of(value)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # of sparse and lazy ones, and of anything else
        return 0, 0
    is_read_only = isinstance(value, numpy.ndarray) and (value.dtype.hasobject or not _owner_of(value).flags.writeable)
    if not start or 0 in value.shape or is_read_only:  # without address on the device `meta`
        return 0, 0
    reaches = [(length - 1) * step for length, step in zip(value.shape, strides, strict=True)]
    return start + sum(min(reach, 0) for reach in reaches), start + sum(max(reach, 0) for reach in reaches) + size


def view_of(value: Any, owner: Any) -> list[Any] | None:
    """Describe a tensor or an array as a view of another: dtype, shape, and strides and offset in bytes.

    None if that is not possible: it is not within the memory of the other, that has gaps, or its type is no plain one.
    """
    (first, last), (start, end) = span_of(value), span_of(owner)
    if first < start or last > end or end - start > owner.nbytes:
        return None
    if type(value) is torch.Tensor and not (value.is_conj() or value.is_neg()):
        dtype = str(value.dtype).removeprefix("torch.")
    elif type(value) in (numpy.ndarray, numpy.memmap) and value.dtype.names is None:
        dtype = value.dtype.str
    else:
        return None
    address, _, strides = _layout_of(value)
    return [dtype, [*value.shape], [*strides], address - start]


def viewed(owner: Any, dtype: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """The view of a tensor or an array that `view_of` describes; an error if it is not within its memory."""
    if isinstance(owner, torch.Tensor):
        memory = torch.empty(0, dtype=torch.uint8, device=owner.device).set_(owner.untyped_storage())
    else:
        memory = torch.from_numpy(_owner_of(owner).ravel(order="K").view(numpy.uint8))
    offset += span_of(owner)[0] - memory.data_ptr()
    if not isinstance(dtype, torch.dtype):
        if numpy.dtype(dtype).hasobject:
            raise ValueError("a view of objects, which are addresses")
        # This checks that it is within.
        return numpy.ndarray(tuple(shape), dtype, memory.numpy(), offset, tuple(strides))
    memory, size = memory[offset:], dtype.itemsize
    memory = memory[: memory.numel() // size * size].view(dtype)
    return memory.as_strided(tuple(shape), tuple(step // size for step in strides))


def _owner_of(array: Any) -> Any:
    """The array that owns the memory of one."""
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def _layout_of(value: Any) -> tuple[int, int, Sequence[int]]:
    """The address, the size of an element, and the strides in bytes."""
    if isinstance(value, torch.Tensor):
        size = value.element_size()
        return int(value.data_ptr()), size, [step * size for step in value.stride()]
    return int(value.__array_interface__["data"][0]), value.itemsize, value.strides
