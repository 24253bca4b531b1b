"""The pieces of a checkpoint, and weights in files, as tensors of the sharded models of this run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.names import plainly_named
from graphtrain.program.agreement import Agreement
from graphtrain.ranks.sharded import is_sharded, whole_of_part
from graphtrain.state.contents import replaced
from graphtrain.state.weights import weights_of
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.pieces import Piece, Sharding, part_of
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
            tensor = _whole(part.values, like, sharding)
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


def fitted(
    checkpoint: Checkpoint, saved: Checkpoint, resources: Mapping[str, Any], world: Agreement
) -> tuple[Checkpoint, str]:
    """A checkpoint whose tensors are sharded as those of models now; and what that changes, in words.

    Arguments:
        saved: the same, as it was read.
        resources: of the run, with all its modules.

    Raises:
        UsageError: they are not sharded any more, or are sharded now, and the ranks cannot take the state.
    """
    if checkpoint.manifest.sharded:
        modules = [each for each in resources.values() if isinstance(each, torch.nn.Module)]
        return assembled(checkpoint, modules), "" if world.mesh else "models that are not sharded now"
    whole = saved if saved.ranks == 1 else checkpoint
    states, gradients = dict(checkpoint.sections["resources"]), dict(whole.sections["gradients"])
    for name, resource in resources.items():
        if isinstance(resource, torch.nn.Module):
            tensors = {(key,): tensor for key, tensor in weights_of(resource).items()}
            parameters = {(key,): parameter for key, parameter in plainly_named(resource.named_parameters())}
            states |= {name: _divided(states[name], tensors, world.rank)} if name in states else {}
            gradients |= {name: _divided(gradients[name], parameters, world.rank)} if name in gradients else {}
            is_changed = gradients.get(name) is not whole.sections["gradients"].get(name)
            if is_changed and saved.ranks > 1 < world.world_size:
                raise UsageError(
                    f"{saved.path}: the gradients of its open window are those of {saved.ranks} processes, and "
                    f"`{name}`, which is sharded now, has their sum",
                    "resume without fully_shard, or with one process, or from a checkpoint between two windows",
                )
        elif isinstance(resource, torch.optim.Optimizer) and name in states:
            numbers = [number for group in states[name]["param_groups"] for number in group["params"]]
            held = [parameter for group in resource.param_groups for parameter in group["params"]]
            of_numbers = {("state", number): parameter for number, parameter in zip(numbers, held, strict=False)}
            states[name] = _divided(states[name], of_numbers, world.rank)
    sections = {**checkpoint.sections, "resources": states, "gradients": gradients}
    return replace(checkpoint, sections=sections), "models that are sharded now"


def _divided(state: Any, targets: Mapping[tuple[Any, ...], torch.Tensor], rank: int) -> Any:
    """A state with this rank's parts of its whole tensors that are sharded now.

    Arguments:
        targets: the tensors that are sharded, by the keys that lead to them, or to what has their shape.
    """

    def divide(part: Any, keys: tuple[Any, ...]) -> Any:
        target = targets.get(keys, targets.get(keys[:-1]))
        if target is None or not is_sharded(target) or not isinstance(part, torch.Tensor) or part.shape != target.shape:
            return part
        _, sharding = part_of(target)
        values = part.detach()[tuple(slice(start, end) for start, end in sharding.box(rank))].clone()
        return _whole(values, target, sharding).requires_grad_(part.requires_grad)

    return replaced(state, divide)


def read_as_sharded(stored: Mapping[str, StoredTensor], module: torch.nn.Module, rank: int) -> dict[str, torch.Tensor]:
    """Weights from files, by name, of which this rank reads its parts of those that are sharded in a module.

    Raises:
        ValueError: a file does not hold what it says.
    """
    targets, saved = weights_of(module), dict[str, torch.Tensor]()
    for name, tensor in stored.items():
        target = targets.get(name)
        if target is not None and is_sharded(target):
            _, sharding = part_of(target)
            part = tensor.read(sharding.box(rank)).to(target.dtype)
            saved[name] = _whole(part, target, sharding)
        else:
            saved[name] = tensor.read()
    return saved


def _whole(values: torch.Tensor, like: torch.Tensor, sharding: Sharding) -> torch.Tensor:
    """A sharded tensor of which this rank has these values, on the mesh of another one."""
    return whole_of_part(values, like, sharding.shape, sharding.stride, sharding.divided)


def expect_whole(checkpoint: Checkpoint, agreement: Agreement) -> None:
    """Raise unless all ranks together have read the values that another number of ranks has saved, each its pieces.

    Raises:
        CheckpointError: they have not; raised on all ranks.
    """
    sums = sums_of_pieces(checkpoint.sections, agreement.rank)
    compare_sums(checkpoint.path, checkpoint.manifest, agreement.gather(sums))
