"""The pieces of a checkpoint, and weights in files, as tensors of the sharded models of this run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.program.agreement import Agreement
from graphtrain.ranks.sharded import is_sharded, whole_of_part
from graphtrain.state.contents import replaced
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.pieces import Piece, part_of
from graphtrain.storage.resharded import compare_sums, sums_of_pieces
from graphtrain.storage.weight_files import StoredTensor


def assembled(checkpoint: Checkpoint, modules: Iterable[torch.nn.Module]) -> Checkpoint:
    """A checkpoint whose pieces are sharded tensors on the mesh of these modules; plain ones if none is sharded.

    Raises:
        UsageError: no module is sharded, and there are several ranks.
    """
    like = next((each for module in modules for each in module.parameters() if is_sharded(each)), None)

    def assemble(part: Any, _keys: Any) -> Any:
        if not isinstance(part, Piece):
            return part
        sharding = part.sharding
        if like is not None:
            tensor = whole_of_part(part.values, like, sharding.shape, sharding.stride, sharding.divided)
        elif math.prod(sharding.mesh) == 1:
            tensor = part.values
        else:
            raise UsageError(
                f"{checkpoint.path}: its models are sharded over ranks, and those of `setup` are not",
                "shard them again: fully_shard(module, mesh=run.mesh), in a setup(run); or resume with one process",
            )
        return tensor.requires_grad_(part.requires_grad)

    sections = {
        name: {key: replaced(part, assemble) for key, part in section.items()}
        for name, section in checkpoint.sections.items()
    }
    return replace(checkpoint, sections=sections)


def read_as_sharded(stored: Mapping[str, StoredTensor], module: torch.nn.Module, rank: int) -> dict[str, torch.Tensor]:
    """Weights from files, by name, of which this rank reads its parts of those that are sharded in a module.

    Raises:
        ValueError: a file does not hold what it says.
    """
    targets, saved = module.state_dict(), dict[str, torch.Tensor]()
    for name, tensor in stored.items():
        target = targets.get(name)
        if target is not None and is_sharded(target):
            _, sharding = part_of(target)
            part = tensor.read(sharding.box(rank)).to(target.dtype)
            saved[name] = whole_of_part(part, target, sharding.shape, sharding.stride, sharding.divided)
        else:
            saved[name] = tensor.read()
    return saved


def expect_whole(checkpoint: Checkpoint, agreement: Agreement) -> None:
    """Raise unless all ranks together have read the values that another number of ranks has saved, each its pieces.

    Raises:
        CheckpointError: they have not; raised on all ranks.
    """
    sums = sums_of_pieces(checkpoint.sections, agreement.rank)
    compare_sums(checkpoint.path, checkpoint.manifest, agreement.gather(sums))
