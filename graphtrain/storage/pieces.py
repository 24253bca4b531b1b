"""Tensors that are sharded over ranks along one dimension: which part of the whole each rank has, and their files.

What is encoded of a sharding has no rank in it, so that it is the same on all ranks, and written once: the part that a
rank has follows from its number.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import safetensors
import torch

from graphtrain.errors import CheckpointError


@final
@dataclass(frozen=True)
class Sharding:
    """How a tensor is divided among ranks, which are numbered along the last dimension of the mesh first.

    Attributes:
        shape, stride: of the whole tensor.
        dimension: the one that is divided along the last dimension of the mesh, as `torch.chunk` does; None where every
            rank has the whole.
        mesh: its shape.
        order: of the dimensions in the memory of a part, if that is another one.

    >>> sharding = Sharding((5, 2), (2, 1), 0, (2, 2))
    >>> [sharding.part(torch.arange(10).view(5, 2), rank).tolist() for rank in (1, 3)]
    [[[6, 7], [8, 9]], [[6, 7], [8, 9]]]
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dimension: int | None
    mesh: tuple[int, ...]
    order: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """In how many parts it is divided; the first ranks have one of each."""
        return 1 if self.dimension is None else self.mesh[-1]

    def bounds(self, rank: int, count: int) -> tuple[int, int]:
        """Where the part of a rank begins and ends along the dimension, if there are so many parts."""
        assert self.dimension is not None, "there are parts"
        size = self.shape[self.dimension]
        length = -(-size // count)
        return min(rank % count * length, size), min((rank % count + 1) * length, size)

    def part(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """What a rank has of the whole, in its memory."""
        if self.dimension is None:
            return whole
        start, stop = self.bounds(rank, self.count)
        return whole.narrow(self.dimension, start, stop - start)


def part_of(tensor: torch.Tensor) -> tuple[torch.Tensor, Sharding]:
    """What this rank has of a sharded tensor, in memory without gaps, and how it is divided.

    Raises:
        ValueError: it is divided in a way that no checkpoint can hold.
    """
    from graphtrain.ranks import sharded  # where there is one, it was imported

    local, order = sharded.local_of(tensor), tuple[int, ...]()
    if not local.is_contiguous():
        order = tuple(sorted(range(local.dim()), key=lambda dimension: -local.stride()[dimension]))
    shape, stride, mesh = tuple(tensor.shape), tuple(tensor.stride()), sharded.mesh_shape(tensor)
    plain = local.clone(memory_format=torch.contiguous_format) if order or local.storage_offset() else local
    return plain, Sharding(shape, stride, sharded.divided_dimension(tensor), mesh, order)


@final
@dataclass
class Piece:
    """A sharded tensor in the state of a checkpoint, whose values are still in the files.

    Attributes:
        like: an empty tensor of its type, on its device.
        sharding: as it was saved.
        requires_grad: as the tensor had it.
        name: in the files.
    """

    like: torch.Tensor
    sharding: Sharding
    requires_grad: bool = False
    name: str = ""

    @classmethod
    def of(cls, parts: Sequence[Any], named: tuple[str, str]) -> Piece:
        """The piece that was encoded."""
        like, shape, stride, dimension, mesh, order, requires_grad = parts
        sharding = Sharding(tuple(shape), tuple(stride), dimension, tuple(mesh), tuple(order))
        return cls(like, sharding, requires_grad, "/".join(named))

    def laid_out(self, part: torch.Tensor) -> torch.Tensor:
        """A part of it, with the order of dimensions in memory that it had."""
        order = self.sharding.order
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return part.permute(order).contiguous().permute(inverse) if order else part


def file_of_pieces(rank: int) -> str:
    """The name of the file of a rank's parts of sharded tensors."""
    return f"rank.{rank:05d}.sharded.safetensors"


@final
class PieceFiles:
    """The files of the parts of sharded tensors in a checkpoint, whose checksums were verified."""

    def __init__(self, path: Path) -> None:
        self._path = path

        def opened(rank: int) -> Any:
            return safetensors.safe_open(path / file_of_pieces(rank), "pt")

        self._open = functools.cache(opened)

    def part(self, piece: Piece, rank: int = 0, count: int = 1) -> torch.Tensor:
        """The part of a tensor that a rank has if it is divided in so many. Default: the whole.

        Raises:
            CheckpointError: the files do not hold it.
        """
        sharding, pieces = piece.sharding, list[torch.Tensor]()
        shape, dimension = list(sharding.shape), sharding.dimension
        try:
            if dimension is None:
                whole: torch.Tensor = self._open(0).get_tensor(piece.name)
                return whole
            start, stop = sharding.bounds(rank, count)
            for saved in range(sharding.count):
                first, end = sharding.bounds(saved, sharding.count)
                low, high = max(first, start), min(end, stop)
                if low < high:
                    cut = [slice(None)] * dimension + [slice(low - first, high - first)]
                    pieces.append(self._open(saved).get_slice(piece.name)[tuple(cut)])
            shape[dimension] = stop - start
            if len(pieces) == 1:
                return pieces[0]
            return torch.cat(pieces, dimension) if pieces else torch.empty(shape, dtype=piece.like.dtype)
        except (OSError, RuntimeError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{self._path}: the parts of `{piece.name}` cannot be read: {error}") from None
