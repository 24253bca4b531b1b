"""Create sharded tensors from the parts in a checkpoint, or from whole weights in files."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.ranks.sharded import is_sharded, whole_of_part
from graphtrain.state.weights import weights_of
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.pieces import Piece, PieceFiles, part_of
from graphtrain.storage.weight_files import StoredTensor


def assembled(checkpoint: Checkpoint, modules: Iterable[torch.nn.Module], rank: int) -> tuple[Checkpoint, str]:
    """Replace the pieces in a checkpoint by tensors, which are sharded if these modules are.

    The text says if they are not sharded now. If they are, those of the checkpoint must be, too.
    """
    like: Any = next((each for module in modules for each in module.parameters() if is_sharded(each)), None)
    if like is not None and not checkpoint.manifest.sharded:
        raise UsageError(
            f"{checkpoint.path}: its models are not sharded over ranks, and those of `setup` are",
            "leave fully_shard out; or begin another run with the weights: --init model=RUN/best",
        )
    files, count = PieceFiles(checkpoint.path), like.device_mesh.size() if like is not None else 1

    def assemble(part: Any) -> Any:
        if not isinstance(part, Piece):
            return _with_parts(part, assemble)
        tensor = files.part(part, rank, count).to(part.like.device)
        if like is not None:
            tensor = whole_of_part(tensor, like, part.shape, part.dimension)
        return tensor.requires_grad_(part.requires_grad)

    sections = {name: _with_parts(dict(section), assemble) for name, section in checkpoint.sections.items()}
    return replace(checkpoint, sections=sections), "models that are not sharded now" if like is None else ""


def _with_parts(value: Any, replace_part: Callable[[Any], Any]) -> Any:
    """A container with replaced parts; the same object if none is replaced."""
    if not isinstance(value, dict) and type(value) not in (list, tuple, collections.deque):
        return value
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    changed_parts = {key: other for key, part in pairs if (other := replace_part(part)) is not part}
    if not changed_parts:
        return value
    changed: Any = [*value] if isinstance(value, tuple) else copy.copy(value)  # with the versions in a `state_dict`
    for key, other in changed_parts.items():
        changed[key] = other
    return tuple(changed) if isinstance(value, tuple) else changed


def read_as_sharded(stored: Mapping[str, StoredTensor], module: torch.nn.Module, rank: int) -> dict[str, torch.Tensor]:
    """Read weights from files, by name; for tensors that are sharded in a module, the parts of this rank."""
    targets, saved = weights_of(module), dict[str, torch.Tensor]()
    for name, tensor in stored.items():
        target, saved[name] = targets.get(name), tensor.read()
        if target is not None and is_sharded(target):
            _, piece = part_of(target)
            part = piece.part(saved[name], rank).to(target.dtype).clone()
            saved[name] = whole_of_part(part, target, piece.shape, piece.dimension)
    return saved
