"""Models that are sharded over ranks by `torch.distributed.fsdp.fully_shard`: their tensors, which are DTensors.

Imported only where there are such tensors.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore  # which torch.distributed does not mark as exported
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from graphtrain.errors import UsageError


def is_sharded(value: Any) -> bool:
    """True for a tensor of which this rank holds a part.

    >>> is_sharded(torch.zeros(2))
    False
    """
    return isinstance(value, DTensor)


def local_of(tensor: Any) -> torch.Tensor:
    """The part of this rank, which shares its memory."""
    local: torch.Tensor = tensor.detach().to_local()
    return local


def divided_dimension(tensor: Any) -> int | None:
    """The dimension of a tensor that is divided among ranks; None where each of them has it all.

    Raises:
        ValueError: it is divided in another way.
    """
    placement, *other_placements = tensor.placements
    if other_placements or type(placement) not in (Shard, Replicate):
        raise ValueError(f"it is divided among ranks as {tensor.placements}; only Shard along one dimension is known")
    return placement.dim if isinstance(placement, Shard) else None


def whole_of_part(values: torch.Tensor, like: Any, shape: Sequence[int], dimension: int | None) -> torch.Tensor:
    """A sharded tensor of this shape, of which this rank has these values.

    Arguments:
        like: a sharded tensor, on whose mesh it is.
        dimension: as `divided_dimension` has it.
    """
    placements = [Replicate() if dimension is None else Shard(dimension)]
    local, stride = values.to(like.to_local().device), torch.empty(shape, device="meta").stride()
    options: dict[str, Any] = {"shape": torch.Size(shape), "stride": stride}
    whole: torch.Tensor = DTensor.from_local(local, like.device_mesh, placements, run_check=False, **options)
    return whole


def refuse_meshes(name: str, tensor: Any, world_size: int) -> None:
    """Raise a UsageError by its name for a sharded tensor that is not divided over all ranks in their order."""
    ranks = tensor.device_mesh.mesh.flatten().tolist()
    problem = "" if ranks == [*range(world_size)] else f"it is sharded over the ranks {ranks} of {world_size}"
    try:
        divided_dimension(tensor)
    except ValueError as error:
        problem = str(error)
    if problem:
        hint = "shard it over all of them, and by this alone: fully_shard(module, mesh=run.mesh), in a setup(run)"
        raise UsageError(f"`{name}`: {problem}", hint)


def sum_gradients(module: torch.nn.Module) -> None:
    """Let every backward pass add up the gradients of all ranks: the loss is divided by the window of all of them."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            # By a sum and no other operation, which not every backend has.
            part.set_force_sum_reduction_for_comms(True)


def reshard(module: torch.nn.Module) -> None:
    """Let the parameters of a module be the sharded ones: a forward pass without a backward pass leaves some whole."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def whole_norms(tensors: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of each tensor, by those of the parts of all ranks, which they gather in one call.

    Plain tensors, which every rank has as a whole, may be among them. All ranks get the same bits.

    Arguments:
        norm_type: the order of the norm; inf takes the largest absolute value.
    """
    with torch.no_grad():
        parts = [local_of(tensor) if is_sharded(tensor) else tensor.detach() for tensor in tensors]
        # Of a part without elements: not every norm is defined.
        parts = [part if part.numel() else part.new_zeros(1) for part in parts]
        norms = torch.stack([torch.linalg.vector_norm(part, norm_type).to(parts[0].device) for part in parts])
        divided = {number: tensor for number, tensor in enumerate(tensors) if is_sharded(tensor)}
        numbers = [number for number, tensor in divided.items() if divided_dimension(tensor) is not None]
        if numbers:
            passed, mesh = norms[numbers], divided[numbers[0]].device_mesh  # type: ignore[attr-defined]
            gathered = [torch.empty_like(passed) for _ in range(mesh.size())]
            dist.all_gather(gathered, passed, group=mesh.get_group())
            norms[numbers] = torch.linalg.vector_norm(torch.stack(gathered), norm_type, dim=0)
    return norms


def mesh_of_process(device_type: str, backend: str) -> DeviceMesh:
    """The mesh of a single process, which is a group of its own then."""
    if not dist.is_initialized():
        if device_type == "cuda":
            torch.cuda.set_device(torch.cuda.current_device())  # else a mesh warns that nobody has chosen one
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    return mesh_of_group(device_type, 1)


def mesh_of_group(device_type: str, world_size: int) -> DeviceMesh:
    """A mesh over all ranks, whose group exists."""
    return init_device_mesh(device_type, (world_size,), mesh_dim_names=("shards",))
