"""The memory of tensors and arrays: which of them share it, and views of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, final

import numpy
import torch

T = TypeVar("T")


class Span(NamedTuple):
    """The memory of a tensor or an array: the address of its first byte, and the one after its last."""

    start: int
    end: int
    device: str

    def overlaps(self, other: Span) -> bool:
        """True if the two may share a byte."""
        return self.device == other.device and self.start < other.end and other.start < self.end


_NOWHERE = Span(0, 0, "")


@final
class MemoryIndex:
    """Tensors and arrays, found by the memory that they are in."""

    def __init__(self, values: Sequence[Any]) -> None:
        starts = numpy.fromiter(map(_start_of, values), numpy.int64, len(values))
        self._values, self._order = values, numpy.argsort(starts, kind="stable")
        self._starts = starts[self._order]

    @functools.cached_property
    def _ends(self) -> Any:
        """The end of the last of all that begin before: the sizes are as slow to read as the addresses."""
        ends = [(span_of(self._values[number]) or _NOWHERE).end for number in self._order]
        return numpy.maximum.accumulate(numpy.array(ends, dtype=numpy.int64))

    def sharing(self, value: Any) -> list[Any]:
        """Those that may share a byte with a tensor or an array, in their order."""
        if (span := span_of(value)) is None:
            return []
        storage = value.untyped_storage() if isinstance(value, torch.Tensor) else None
        if storage is not None and storage.resizable():  # whatever shares a whole allocation begins in it
            begin = int(storage.data_ptr())
            first, last = numpy.searchsorted(self._starts, [begin, begin + storage.nbytes()])
        else:
            first = numpy.searchsorted(self._ends, span.start, side="right")
            last = numpy.searchsorted(self._starts, span.end)
        near = [self._values[number] for number in sorted(self._order[first:last])]
        return [each for each in near if (other := span_of(each)) is not None and other.overlaps(span)]


def _start_of(value: Any) -> int:
    """The address of the first byte, of 100,000 tensors in a tenth of the time of their spans; 0 without memory."""
    try:
        return value.data_ptr() if isinstance(value, torch.Tensor) else (span_of(value) or _NOWHERE).start
    except (TypeError, RuntimeError, ValueError):
        return 0


def overlapping(spans: Mapping[T, Span]) -> list[list[T]]:
    """The keys of those that may share bytes, in groups, in the order of their addresses."""
    groups: list[list[T]] = []
    last = _NOWHERE
    for key, span in sorted(spans.items(), key=lambda item: (item[1].device, item[1].start)):
        if span.overlaps(last):
            groups[-1].append(key)
            last = max(last, span, key=lambda each: each.end)
        else:
            groups.append([key])
            last = span
    return [group for group in groups if len(group) > 1]


def span_of(value: Any) -> Span | None:
    """The memory of a tensor or an array; None for one without elements, or without plain memory."""
    if isinstance(value, torch.Tensor):
        is_lazy = torch.nn.parameter.is_lazy(value)
        if is_lazy or value.layout is not torch.strided or value.is_meta or not value.numel():
            return None
        steps = zip(value.shape, value.stride(), strict=True)
        size = (1 + sum((length - 1) * step for length, step in steps)) * value.element_size()
        return Span(start := int(value.data_ptr()), start + size, str(value.device))
    if not value.size or value.dtype.hasobject:
        return None
    spans = [(length - 1) * step for length, step in zip(value.shape, value.strides, strict=True)]
    start = _address_of(value)
    last = start + sum(max(span, 0) for span in spans)
    return Span(start + sum(min(span, 0) for span in spans), last + value.itemsize, "cpu")


def _allocation_of(value: Any) -> torch.Tensor | None:
    """All the memory that a tensor or an array lies in, as bytes; None if it cannot be written to as such."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        return torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage, 0, (storage.nbytes(),), (1,))
    owner = owner_of(value)
    is_plain = owner.flags.forc and owner.flags.writeable
    return torch.from_numpy(owner.ravel(order="K").view(numpy.uint8)) if is_plain else None


def view_of(value: Any, owner: Any, *, is_new: bool) -> list[Any] | None:
    """A tensor or an array as a view of another: dtype, shape, and strides and offset from its first byte, in bytes.

    None if there is no such description, as for another class, or one that is conjugated when it is read.

    Arguments:
        is_new: True if a resume has only the elements of the other, False if it has the whole allocation.
    """
    span, of_owner, allocation = span_of(value), span_of(owner), _allocation_of(owner)
    around = of_owner if allocation is None or is_new else span_of(allocation)
    if span is None or of_owner is None or allocation is None or around is None or span.device != around.device:
        return None
    has_gaps = is_new and of_owner.end - of_owner.start > owner.nbytes
    if has_gaps or span.start < around.start or span.end > around.end:
        return None
    if type(value) is torch.Tensor:
        size, dtype = value.element_size(), str(value.dtype).removeprefix("torch.")
        if value.is_conj() or value.is_neg() or (span.start - allocation.data_ptr()) % size:
            return None
        start, strides = span.start, [step * size for step in value.stride()]
    elif type(value) in (numpy.ndarray, numpy.memmap) and value.dtype.names is None:
        start, dtype, strides = _address_of(value), value.dtype.str, list(value.strides)
    else:
        return None
    return [dtype, list(value.shape), strides, start - of_owner.start]


def viewed(owner: Any, dtype: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """The view of a tensor or an array that `view_of` describes; an error if it is not within."""
    span, whole = span_of(owner), _allocation_of(owner)
    if span is None or whole is None:
        raise ValueError("the base of a view has no memory now")
    offset += span.start - whole.data_ptr()
    if not isinstance(dtype, torch.dtype):
        # This checks that it is within; NumPy knows it to be a view of an array.
        return numpy.ndarray(tuple(shape), dtype, whole.numpy(), offset, tuple(strides))
    size = dtype.itemsize
    end = offset + sum((length - 1) * step for length, step in zip(shape, strides, strict=True)) + size
    return whole[offset:end].view(dtype).as_strided(tuple(shape), tuple(step // size for step in strides))


def owner_of(array: Any) -> Any:
    """The array that owns the memory of one."""
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def start_of_allocation(value: Any) -> int:
    """The address of all the memory that a tensor or an array lies in; 0 if it cannot be written to as bytes."""
    allocation = _allocation_of(value) if span_of(value) is not None else None
    return 0 if allocation is None else allocation.data_ptr()


def _address_of(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
