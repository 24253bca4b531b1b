"""Weights as `torch.distributed.checkpoint` saves and loads them, written by its own writers.

Imported only for that: it takes seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save

from graphtrain.errors import CheckpointError
from graphtrain.storage.pieces import Box, Piece
from graphtrain.storage.weight_files import whole_box

_Part = tuple[Box, torch.Tensor]


def write_distributed(folder: Path, tensors: Mapping[str, Sequence[Any]], origin: Path) -> int:
    """Write tensors to a folder, in the parts in which a checkpoint has them, one after the other.

    Arguments:
        folder: it must not exist.
        tensors: name -> what every rank has of it.
        origin: the checkpoint, for messages.

    Returns:
        How many elements they have.

    Raises:
        CheckpointError: the pieces of a tensor do not fit.
        OSError: the disk refuses; nothing is left behind.
    """
    planner = _Parts({name: _whole_of(name, of_ranks, origin) for name, of_ranks in tensors.items()})
    folder.mkdir(parents=True)
    try:
        # One thread: what goes wrong in another one is lost, and the checkpoint without it.
        writer = FileSystemWriter(folder, thread_count=1)
        save({}, storage_writer=writer, planner=planner, no_dist=True)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        failures = error.failures if isinstance(error, CheckpointException) else {}
        for failure, _ in failures.values():
            if isinstance(failure, OSError):
                raise failure from None
        raise
    return sum(torch.Size(shape).numel() for shape, _ in planner.tensors.values())


def _whole_of(name: str, of_ranks: Sequence[Any], origin: Path) -> tuple[Sequence[int], list[_Part]]:
    """The shape of a tensor, and its parts; a plain one is that of rank 0."""
    first = of_ranks[0]
    if not isinstance(first, Piece):
        return first.shape, [(whole_box(first.shape), first)]
    parts: list[_Part] = []
    for rank, piece in enumerate(of_ranks):
        try:
            if not isinstance(piece, Piece) or piece.sharding != first.sharding:
                raise ValueError("a piece of another tensor than on rank 0")
            piece.check(rank)
        except ValueError as error:
            raise CheckpointError(f"{origin}: `{name}` on rank {rank}: {error}") from None
        if piece.sharding.is_first(rank) and (piece.values.numel() or not parts):
            parts.append((piece.sharding.box(rank), piece.values))
    return first.sharding.shape, parts


@final
class _Parts(DefaultSavePlanner):
    """What is written: every part as if a rank had it."""

    def __init__(self, tensors: Mapping[str, tuple[Sequence[int], list[_Part]]]) -> None:
        super().__init__()
        self.tensors = tensors
        self._values: dict[MetadataIndex, torch.Tensor] = {}

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([*self._items()], planner_data={name: (name,) for name in self.tensors})
        return self.plan

    def _items(self) -> Iterator[WriteItem]:
        for name, (shape, parts) in self.tensors.items():
            for box, values in parts:
                offsets = torch.Size(start for start, _ in box)
                index = MetadataIndex(name, offsets)
                self._values[index] = values
                chunk = ChunkStorageMetadata(offsets, torch.Size(end - start for start, end in box))
                properties = TensorProperties(dtype=values.dtype)
                data = TensorWriteData(chunk, properties, torch.Size(shape))
                yield WriteItem(index, WriteItemType.SHARD, tensor_data=data)

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        return self._values[index].detach()
