"""Models that `torch.distributed.fsdp.fully_shard` has sharded over ranks: their tensors, which are DTensors.

Imported only if there are such tensors.
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
    """True for a tensor that is distributed over ranks.

    >>> is_sharded(torch.zeros(2))
    False
    """
    return isinstance(value, DTensor)


def local_of(tensor: Any) -> torch.Tensor:
    """The local part of a sharded tensor, which shares its memory."""
    local: torch.Tensor = tensor.detach().to_local()
    return local


def divided_dimension(tensor: Any) -> int | None:
    """The dimension along which a tensor is sharded; None if every rank has the whole tensor.

    Raises:
        ValueError: it is sharded in another way.
    """
    placement, *other_placements = tensor.placements
    if other_placements or type(placement) not in (Shard, Replicate):
        raise ValueError(f"it is sharded as {tensor.placements}; only Shard along one dimension is supported")
    return placement.dim if isinstance(placement, Shard) else None


def whole_of_part(values: torch.Tensor, like: Any, shape: Sequence[int], dimension: int | None) -> torch.Tensor:
    """Create a sharded tensor of this shape from the values of its local part.

    Arguments:
        like: a sharded tensor, whose mesh is used.
        dimension: as `divided_dimension` returns it.
    """
    placements = [Replicate() if dimension is None else Shard(dimension)]
    local, stride = values.to(like.to_local().device), torch.empty(shape, device="meta").stride()
    options: dict[str, Any] = {"shape": torch.Size(shape), "stride": stride}
    whole: torch.Tensor = DTensor.from_local(local, like.device_mesh, placements, run_check=False, **options)
    return whole


def refuse_meshes(name: str, tensor: Any, world_size: int) -> None:
    """Raise a UsageError for a sharded tensor that is not divided over all ranks in their order."""
    ranks = tensor.device_mesh.mesh.flatten().tolist()
    problem = "" if ranks == [*range(world_size)] else f"it is sharded over the ranks {ranks} of {world_size}"
    try:
        divided_dimension(tensor)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise UsageError(f"`{name}`: {problem}", "shard it only by fully_shard(module, mesh=run.mesh), in a setup(run)")


def sum_gradients(module: torch.nn.Module) -> None:
    """Let backward passes sum gradients over ranks instead of averaging: the loss is divided by the window of all."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            # By a sum: not every backend has other operations.
            part.set_force_sum_reduction_for_comms(True)


def reshard(module: torch.nn.Module) -> None:
    """Let a module hold its sharded parameters: a forward pass without a backward pass leaves some unsharded."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def whole_norms(tensors: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norms of whole tensors, from those of the parts of all ranks, which are gathered in one call.

    Plain tensors, which are equal on all ranks, may be among them. All ranks get the same bits.

    Arguments:
        norm_type: the order of the norm; inf takes the largest absolute value.
    """
    with torch.no_grad():
        parts = [local_of(tensor) if is_sharded(tensor) else tensor.detach() for tensor in tensors]
        # Not every norm is defined for a part without elements.
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
    """A mesh of this process only; creates a group for it."""
    if not dist.is_initialized():
        if device_type == "cuda":
            torch.cuda.set_device(torch.cuda.current_device())  # else creating a mesh warns that none is set
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    return mesh_of_group(device_type, 1)


def mesh_of_group(device_type: str, world_size: int) -> DeviceMesh:
    """A mesh over all ranks of the default group."""
    return init_device_mesh(device_type, (world_size,), mesh_dim_names=("shards",))
