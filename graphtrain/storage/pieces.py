"""Tensors that are sharded over ranks along one dimension: which part each rank has, and the files of the parts.

The encoding of a sharded tensor is the same on all ranks, and written once: which part a rank has follows from its
number.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import safetensors
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.value_types import TYPES


@final
@dataclass(frozen=True)
class Piece:
    """A tensor that is divided among ranks.

    Attributes:
        shape: that of the whole tensor.
        dimension: the dimension that is divided, as by `torch.chunk`; None if every rank has the whole.
        count: the number of parts, one for each rank; 1 if every rank has the whole.
        requires_grad: as for the tensor. Default: False.
        like: only when read from a checkpoint: an empty tensor of its dtype, on its device.
        name: only when read from a checkpoint: its name in the files of parts.

    >>> piece = Piece((5, 2), 0, count=2)
    >>> [piece.part(torch.arange(10).view(5, 2), rank).tolist() for rank in range(2)]
    [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]
    """

    shape: tuple[int, ...]
    dimension: int | None
    count: int
    requires_grad: bool = False
    like: Any = None
    name: str = ""

    def bounds(self, rank: int, count: int) -> tuple[int, int]:
        """Where the part of a rank begins and ends along the dimension, if it is divided into `count` parts."""
        assert self.dimension is not None, "there are parts"
        size = self.shape[self.dimension]
        length = -(-size // count)
        return min(rank % count * length, size), min((rank % count + 1) * length, size)

    def part(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """The part of a rank, as a view of the whole tensor."""
        if self.dimension is None:
            return whole
        start, stop = self.bounds(rank, self.count)
        return whole.narrow(self.dimension, start, stop - start)


def part_of(tensor: torch.Tensor) -> tuple[torch.Tensor, Piece]:
    """The local part of a sharded tensor, and how the tensor is divided.

    Raises:
        ValueError: a checkpoint cannot hold it.
    """
    from graphtrain.ranks import sharded  # where there is one, it was imported

    local = sharded.local_of(tensor)
    if tensor.dtype not in TYPES or not local.is_contiguous():
        detail = "" if local.is_contiguous() else ", with gaps in memory"
        raise ValueError(f"it is sharded over ranks and of {tensor.dtype}{detail}, which no file of parts can hold")
    dimension = sharded.divided_dimension(tensor)
    count = 1 if dimension is None else tensor.device_mesh.size()  # type: ignore[attr-defined]
    piece = Piece(tuple(tensor.shape), dimension, count, tensor.requires_grad)
    return local.clone() if local.storage_offset() else local, piece


def file_of_pieces(rank: int) -> str:
    """The name of the file with the parts of a rank of sharded tensors."""
    return f"rank.{rank:05d}.sharded.safetensors"


@final
class PieceFiles:
    """The files of the parts of sharded tensors in a checkpoint; their checksums have been verified before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: Any = functools.cache(lambda rank: safetensors.safe_open(path / file_of_pieces(rank), "pt"))

    def part(self, piece: Piece, rank: int = 0, count: int = 1) -> torch.Tensor:
        """Read the part of a rank, if the tensor is divided into `count` parts now. Default: the whole tensor.

        Raises:
            CheckpointError: the files do not hold it.
        """
        try:
            if (dimension := piece.dimension) is None:
                whole: torch.Tensor = self._open(0).get_tensor(piece.name)
                return whole
            start, stop = piece.bounds(rank, count)
            parts = [torch.empty((*piece.shape[:dimension], 0, *piece.shape[dimension + 1 :]), dtype=piece.like.dtype)]
            for saved in range(piece.count):
                first, end = piece.bounds(saved, piece.count)
                low, high = max(first, start), min(end, stop)
                if low < high:
                    cut = (*[slice(None)] * dimension, slice(low - first, high - first))
                    parts.append(self._open(saved).get_slice(piece.name)[cut])
            return torch.cat(parts, dimension)
        except (OSError, RuntimeError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{self._path}: the parts of `{piece.name}` cannot be read: {error}") from None
