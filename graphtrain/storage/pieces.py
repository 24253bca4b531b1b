"""Pieces of tensors that are sharded over ranks: which part of the whole each rank holds, and how other ranks cut it.

What is encoded of a sharding has no rank in it, so that it is the same on all ranks, and written once: the box that a
rank holds follows from its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import xxhash

# Sums of the hashes of units are taken modulo this.
_MODULUS = 1 << 128

Box = tuple[tuple[int, int], ...]
"""The first index and the end of a part of a tensor, for each of its dimensions."""


@final
@dataclass(frozen=True)
class Sharding:
    """How a tensor is divided among ranks, which are numbered along the last dimension of the mesh first.

    Attributes:
        shape, stride: of the whole tensor.
        divided: for each dimension of the mesh, the dimension of the tensor that is divided along it, as `torch.chunk`
            does; None where every rank has the same.
        mesh: its shape.

    >>> sharding = Sharding((5, 2), (2, 1), (None, 0), (2, 2))
    >>> [sharding.box(rank) for rank in range(4)]
    [((0, 3), (0, 2)), ((3, 5), (0, 2)), ((0, 3), (0, 2)), ((3, 5), (0, 2))]
    >>> sharding.on((1, 3)).box(2), sharding.on((6,)).box(5)
    (((4, 5), (0, 2)), ((5, 5), (0, 2)))
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    divided: tuple[int | None, ...]
    mesh: tuple[int, ...]

    def place(self, rank: int) -> tuple[int, ...]:
        """The coordinates of a rank in the mesh."""
        place = []
        for size in reversed(self.mesh):
            rank, coordinate = divmod(rank, size)
            place.append(coordinate)
        return tuple(reversed(place))

    def box(self, rank: int) -> Box:
        """The part that a rank holds."""
        box = [(0, size) for size in self.shape]
        for dimension, coordinate, size in zip(self.divided, self.place(rank), self.mesh, strict=True):
            if dimension is not None:
                start, end = box[dimension]
                length = -(-(end - start) // size)
                box[dimension] = (min(start + coordinate * length, end), min(start + (coordinate + 1) * length, end))
        return tuple(box)

    def on(self, mesh: Sequence[int]) -> Sharding:
        """The same tensor, divided along the last dimension of another mesh."""
        dimensions = [dimension for dimension in self.divided if dimension is not None]
        first = dimensions[0] if dimensions else None
        divided = self.divided if len(mesh) == len(self.divided) else (*[None] * (len(mesh) - 1), first)
        return Sharding(self.shape, self.stride, divided, tuple(mesh))

    def is_first(self, rank: int) -> bool:
        """True for the first of the ranks that hold the same part."""
        pairs = zip(self.divided, self.place(rank), strict=True)
        return all(dimension is not None or not coordinate for dimension, coordinate in pairs)

    def unit(self) -> int:
        """The dimension along which the whole is cut into units, of which no rank has a part."""
        return next((dimension for dimension in self.divided if dimension is not None), 0)


def part_of(tensor: torch.Tensor) -> tuple[torch.Tensor, Sharding]:
    """What this rank has of a sharded tensor, and how it is divided.

    Raises:
        ValueError: it is divided in a way that no checkpoint can hold.
    """
    from graphtrain.ranks import sharded  # where there is one, it was imported

    divided, mesh = sharded.divided_of(tensor), sharded.mesh_shape(tensor)
    return sharded.local_of(tensor), Sharding(tuple(tensor.shape), tuple(tensor.stride()), divided, mesh)


@final
@dataclass
class Piece:
    """A part of a tensor, as a checkpoint holds it.

    Attributes:
        values: the part of one rank. Without values, on the device meta, while it is only known which there are.
        sharding: of the whole.
        requires_grad: as the tensor had it.
        named: the file that it belongs to, and its name there.
    """

    values: torch.Tensor
    sharding: Sharding
    requires_grad: bool = False
    named: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, parts: Sequence[Any], named: tuple[str, str]) -> Piece:
        """The piece that was encoded.

        Raises:
            ValueError: that is no piece.
        """
        values, shape, stride, divided, mesh, requires_grad = parts
        sizes = (*shape, *stride, *mesh, *(each for each in divided if each is not None))
        fits = isinstance(values, torch.Tensor) and type(requires_grad) is bool and len(divided) == len(mesh)
        if not fits or any(type(size) is not int or size < 0 for size in sizes) or 0 in mesh:
            raise ValueError("a piece of a tensor that none can be of")
        if len(stride) != len(shape) or any(each is not None and each >= len(shape) for each in divided):
            raise ValueError("a piece of a tensor that none can be of")
        return cls(values, Sharding(tuple(shape), tuple(stride), tuple(divided), tuple(mesh)), requires_grad, named)

    def check(self, rank: int) -> None:
        """Raise unless it has the shape of the part of a rank.

        Raises:
            ValueError: it has not.
        """
        expected = tuple(end - start for start, end in self.sharding.box(rank))
        if tuple(self.values.shape) != expected:
            raise ValueError(f"a piece of shape {tuple(self.values.shape)}, where rank {rank} has {expected}")


def overlap(first: Box, second: Box) -> Box | None:
    """What two boxes have in common; None for nothing.

    >>> overlap(((0, 3), (0, 2)), ((2, 5), (0, 2))), overlap(((0, 3),), ((3, 5),))
    (((2, 3), (0, 2)), None)
    """
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return common if all(start < end for start, end in common) else None


def copy_common(target: torch.Tensor, box: Box, source: torch.Tensor, source_box: Box) -> int:
    """Copy what the part of one rank has of the part of another; returns how many elements."""
    common = overlap(box, source_box)
    if common is None:
        return 0
    inside, outside = (
        tuple(slice(start - first, end - first) for (start, end), (first, _) in zip(common, whole, strict=True))
        for whole in (box, source_box)
    )
    target[inside].copy_(source[outside])
    return math.prod(end - start for start, end in common)


# ---- whole values, compared by pieces


def sums_of(
    pieces: Mapping[str, Sharding], rank: int, data_of: Callable[[str], tuple[str, memoryview]]
) -> dict[str, str]:
    """The sums of the parts that a rank has, by name, in hexadecimal.

    Arguments:
        data_of: returns the type of one, as text, and its bytes.
    """
    sums = {}
    for name, sharding in pieces.items():
        dtype, data = data_of(name)
        sums[name] = f"{sum_of(sharding, rank, data, dtype):x}"
    return sums


def sum_of(sharding: Sharding, rank: int, data: memoryview, dtype: str) -> int:
    """A sum of hashes, one of each unit of the part of a rank: those of all ranks add up to that of the whole.

    So it does not depend on how many ranks there are. It finds differences; it does not withstand somebody who looks
    for two tensors of one sum.

    Arguments:
        data: the bytes of that part, in the order of its dimensions.
        dtype: as text.

    >>> whole, halves = Sharding((4, 2), (2, 1), (0,), (1,)), Sharding((4, 2), (2, 1), (0,), (2,))
    >>> data = memoryview(bytes(range(8)))
    >>> by_pieces = sum_of(halves, 0, data[:4], "U8") + sum_of(halves, 1, data[4:], "U8")
    >>> sum_of(whole, 0, data, "U8") == by_pieces % 2**128
    True
    """
    if not sharding.is_first(rank):
        return 0
    box, unit = sharding.box(rank), sharding.unit()
    if not box:
        return xxhash.xxh3_128_intdigest(data)
    start, end = box[unit]
    count = end - start
    if not count or not len(data):
        return 0
    if unit:  # a unit is not in one place
        shape = [stop - first for first, stop in box]
        bytes_of = torch.frombuffer(data, dtype=torch.uint8).reshape(*shape, -1)
        data = memoryview(bytes_of.movedim(unit, 0).contiguous().reshape(-1).numpy().data)
    size, text = len(data) // count, f"{dtype}{sharding.shape}{unit}".encode()
    seed = xxhash.xxh3_64_intdigest(text)
    digest = xxhash.xxh3_128_intdigest
    return (
        sum(
            digest(data[number * size : (number + 1) * size], (seed + start + number) % 2**64)
            for number in range(count)
        )
        % _MODULUS
    )


def digests_of_whole(of_ranks: Sequence[Mapping[str, Mapping[str, str]]]) -> dict[str, str]:
    """A digest of the sharded tensors of every file, from the sums of all ranks: file -> name -> hexadecimal.

    >>> one = digests_of_whole([{"model": {"weight": "100"}}])
    >>> one == digests_of_whole([{"model": {"weight": "ff"}}, {"model": {"weight": "1"}}])
    True
    """
    sums: dict[str, dict[str, int]] = {}
    for files in of_ranks:
        for file, named in files.items():
            of_file = sums.setdefault(file, {})
            for name, text in named.items():
                of_file[name] = (of_file.get(name, 0) + int(text, 16)) % _MODULUS
    lines = {file: "\n".join(f"{name}:{named[name]:032x}" for name in sorted(named)) for file, named in sums.items()}
    return {file: xxhash.xxh3_128_hexdigest(text.encode()) for file, text in lines.items()}
