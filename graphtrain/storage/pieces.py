"""Pieces of tensors that are sharded over ranks: which part of the whole each rank holds.

What is encoded of a sharding has no rank in it, so that it is the same on all ranks, and written once: the part that a
rank holds follows from its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch


@final
@dataclass(frozen=True)
class Sharding:
    """How a tensor is divided among ranks, which are numbered along the last dimension of the mesh first.

    Attributes:
        shape, stride: of the whole tensor.
        dimension: the one that is divided along the last dimension of the mesh, as `torch.chunk` does; None where every
            rank has the whole.
        mesh: its shape.

    >>> sharding = Sharding((5, 2), (2, 1), 0, (2, 2))
    >>> [sharding.part(torch.arange(10).view(5, 2), rank).tolist() for rank in (1, 3)]
    [[[6, 7], [8, 9]], [[6, 7], [8, 9]]]
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dimension: int | None
    mesh: tuple[int, ...]

    @property
    def count(self) -> int:
        """In how many parts it is divided; the first ranks have one of each."""
        return 1 if self.dimension is None else self.mesh[-1]

    def part(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """What a rank holds of the whole, in its memory."""
        if self.dimension is None:
            return whole
        size = self.shape[self.dimension]
        length = -(-size // self.count)
        start = min(rank % self.count * length, size)
        return whole.narrow(self.dimension, start, min(length, size - start))

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The whole, of its parts.

        Raises:
            ValueError: it has another shape.
        """
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts), self.dimension or 0)
        if tuple(whole.shape) != self.shape:
            raise ValueError(f"its parts make a tensor of shape {tuple(whole.shape)}, and it is of {self.shape}")
        return whole


def part_of(tensor: torch.Tensor) -> tuple[torch.Tensor, Sharding]:
    """What this rank has of a sharded tensor, and how it is divided.

    Raises:
        ValueError: it is divided in a way that no checkpoint can hold.
    """
    from graphtrain.ranks import sharded  # where there is one, it was imported

    dimension, mesh = sharded.divided_dimension(tensor), sharded.mesh_shape(tensor)
    return sharded.local_of(tensor), Sharding(tuple(tensor.shape), tuple(tensor.stride()), dimension, mesh)


@final
@dataclass
class Piece:
    """A part of a tensor, as a checkpoint holds it.

    Attributes:
        values: the part of one rank.
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
        """The piece that was encoded."""
        values, shape, stride, dimension, mesh, requires_grad = parts
        return cls(values, Sharding(tuple(shape), tuple(stride), dimension, tuple(mesh)), requires_grad, named)


def pieces_of(value: Any) -> Iterator[Piece]:
    """The pieces in a state."""
    if isinstance(value, Piece):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from pieces_of(part)
