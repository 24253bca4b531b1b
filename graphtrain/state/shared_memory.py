"""Tensors and arrays that lie in one memory, which none of them may have as a whole, such as rows of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

# Within a memory that starts there, a view of any type has a whole number as its offset.
_ALIGNMENT = 16


@dataclass(frozen=True)
class Part:
    """A tensor or an array in a memory.

    Attributes:
        number: of its description.
        start, end: its first byte, and the one after its last.
        size: of its values, in bytes.
    """

    number: int
    value: Any
    start: int
    end: int
    size: int

    def view(self, start: int) -> dict[str, Any]:
        """How it lies in what begins at a byte of the memory, as a description has it."""
        value = self.value
        if isinstance(value, torch.Tensor):
            offset = value.storage_offset() - start // value.element_size()
            return {"view": (list(value.shape), list(value.stride()), offset), "dtype": value.dtype, "apart": True}
        offset = address_of(value) - address_of(owner_of(value)) - start
        return {"view": (list(value.shape), list(value.strides), offset), "dtype": value.dtype.str}


@dataclass(frozen=True)
class Memory:
    """A span of memory with two parts or more.

    Attributes:
        key: the identity of a tensor's storage; 0 for that of arrays.
        start: the first byte of the whole.
        whole: all bytes from the first to the last, as one tensor or array that shares them.
    """

    key: int
    start: int
    whole: Any
    parts: Sequence[Part]

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.whole)

    @property
    def size_of_parts(self) -> int:
        """The bytes of its parts, each for itself."""
        return sum(part.size for part in self.parts)

    @property
    def overlaps(self) -> bool:
        """True if what is written to one part may be seen in another."""
        ends = itertools.accumulate((part.end for part in self.parts), max)
        return any(part.start < end for part, end in zip(self.parts[1:], ends, strict=False))


def memories(described: Sequence[Any]) -> Iterator[Memory]:
    """The memories that several of those have a part in that are described by their values."""
    parts: dict[tuple[str, int], list[Part]] = {}
    for number, description in enumerate(described):
        value = description.get("values") if isinstance(description, dict) else None
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel() and not value.is_meta:
            size = value.element_size()
            start = int(value.storage_offset()) * size
            steps = zip(value.shape, value.stride(), strict=True)
            end = start + (1 + sum((length - 1) * step for length, step in steps)) * size
            place = ("tensor", int(value.untyped_storage()._cdata))
            parts.setdefault(place, []).append(Part(number, value, start, end, value.numel() * size))
        elif isinstance(value, numpy.ndarray) and value.size and owner_of(value).flags.forc:
            owner = owner_of(value)
            spans = [(length - 1) * step for length, step in zip(value.shape, value.strides, strict=True)]
            first = address_of(value) - address_of(owner)
            start = first + sum(span for span in spans if span < 0)
            end = first + sum(span for span in spans if span > 0) + value.itemsize
            parts.setdefault(("array", id(owner)), []).append(Part(number, value, start, end, value.nbytes))
    for (kind, key), members in parts.items():
        if len(members) > 1:
            members.sort(key=lambda part: part.start)
            start, end = members[0].start // _ALIGNMENT * _ALIGNMENT, max(part.end for part in members)
            value = members[0].value
            if kind == "tensor":
                whole = torch.empty(0, dtype=torch.uint8, device=value.device)
                whole.set_(value.untyped_storage(), start, (end - start,), (1,))
                yield Memory(key, start, whole, members)
            else:
                yield Memory(0, start, owner_of(value).ravel(order="K").view(numpy.uint8)[start:end], members)


def owner_of(array: Any) -> Any:
    """The array whose memory one lies in, which is no view of another."""
    while isinstance(array.base, numpy.ndarray):
        array = array.base
    return array


def address_of(array: Any) -> int:
    """The first byte of the values of an array."""
    return int(array.__array_interface__["data"][0])
