"""Weights as `torch.distributed.checkpoint` saves and loads them, written by its own writers.

Imported only for that: it takes seconds.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save

Box = tuple[tuple[int, int], ...]
Parts = Sequence[tuple[Box, Callable[[], torch.Tensor]]]
Tensors = Mapping[str, tuple[torch.dtype, Sequence[int], Parts]]


def write_distributed(folder: Path, tensors: Tensors) -> None:
    """Write tensors to a folder, in the parts of which they consist, one after the other.

    Arguments:
        folder: it must not exist.
        tensors: name -> type, shape, and parts: where in it each begins and ends, and a function that returns its
            bytes, of an additional last dimension.

    Raises:
        OSError: the disk refuses; nothing is left behind.
    """
    folder.mkdir(parents=True)
    try:
        # One thread: what goes wrong in another one is lost, and the checkpoint without it.
        writer = FileSystemWriter(folder, thread_count=1)
        with warnings.catch_warnings():  # of a single process
            warnings.simplefilter("ignore", UserWarning)
            save({}, storage_writer=writer, planner=_Parts(tensors), no_dist=True)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        failures = error.failures if isinstance(error, CheckpointException) else {}
        for failure, _ in failures.values():
            if isinstance(failure, OSError):
                raise failure from None
        raise


@final
class _Parts(DefaultSavePlanner):
    """What is written: every part as if a rank had it."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self._tensors = tensors
        self._values: dict[MetadataIndex, tuple[Callable[[], torch.Tensor], torch.dtype]] = {}

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([*self._items()], planner_data={name: (name,) for name in self._tensors})
        return self.plan

    def _items(self) -> Iterator[WriteItem]:
        for name, (dtype, shape, parts) in self._tensors.items():
            for box, read in parts:
                offsets = torch.Size(start for start, _ in box)
                index = MetadataIndex(name, offsets)
                self._values[index] = read, dtype
                chunk = ChunkStorageMetadata(offsets, torch.Size(end - start for start, end in box))
                data = TensorWriteData(chunk, TensorProperties(dtype=dtype), torch.Size(shape))
                yield WriteItem(index, WriteItemType.SHARD, tensor_data=data)

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        read, dtype = self._values[index]
        return read().view(dtype).squeeze(-1)
