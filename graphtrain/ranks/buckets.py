"""Gradients summed over ranks in buckets that depend on nothing but the parameters, and buffers given to all ranks.

The last bits of a sum over more than two ranks depend on the position of a number in the buffer. So buckets follow the
order of the parameters, not that in which gradients arrive: DistributedDataParallel rebuilds its buckets after the
first exchange, which a resume cannot repeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from graphtrain.errors import UsageError
from graphtrain.ranks.ranks import Ranks

# As in DistributedDataParallel: large enough that a call costs little, small enough that copying and sending overlap.
BUCKET_BYTES = 25 * 2**20
# Larger tensors are summed in place: 0.8 ms of 4.5 for four megabytes were spent on copying.
LARGE_BYTES = 2**20


@torch.no_grad()
def exchange_tensors(
    ranks: Ranks, parameters: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor] = (), *, averages: bool = False
) -> None:
    """Replace the gradient of every parameter by its sum over ranks, and every buffer by that of rank 0.

    Arguments:
        parameters: the same on all ranks, in one order: those that have a gradient on any of them. A gradient
            that this rank lacks counts as zeros.
        buffers: of the same shapes and types on all ranks, in one order.
        averages: True replaces buffers of floating-point numbers by their means.

    Raises:
        UsageError: a gradient is sparse.
    """
    large: list[torch.Tensor] = []
    small: list[torch.Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.layout is not torch.strided:
            raise UsageError(
                f"a parameter of shape {list(parameter.shape)} has a sparse gradient; ranks sum only dense ones",
                "make it dense, as with Embedding(..., sparse=False)",
            )
        # By the parameter, which is the same on all ranks.
        is_large = parameter.numel() * parameter.element_size() >= LARGE_BYTES and parameter.is_contiguous()
        (large if is_large else small).append(parameter.grad)
    whole = [gradient.contiguous() for gradient in large]  # mostly the gradients themselves
    buckets, shared = list(buckets_of(small)), list(buckets_of([buffer for buffer in buffers if buffer.numel()]))
    flat = [torch.cat([tensor.reshape(-1) for tensor in bucket]) for bucket in (*buckets, *shared)]
    passed = [*flat[: len(buckets)], *(_share(ranks, values, averages) for values in flat[len(buckets) :])]
    ranks.exchange([*whole, *passed])
    for gradient, summed in zip(large, whole, strict=True):
        if summed is not gradient:
            gradient.copy_(summed)
    for bucket, values in zip((*buckets, *shared), flat, strict=True):
        parts = torch.split(values, [tensor.numel() for tensor in bucket])
        torch._foreach_copy_(bucket, [part.view(tensor.shape) for part, tensor in zip(parts, bucket, strict=True)])


def _share(ranks: Ranks, values: torch.Tensor, averages: bool) -> torch.Tensor:
    """The summands by which `values` become their means, or those of rank 0: then bytes, which keep all bits."""
    if averages and values.is_floating_point():
        return values.div_(ranks.world_size)
    return (values.zero_() if ranks.rank else values).view(torch.uint8)


def buckets_of(tensors: Sequence[torch.Tensor], bucket_bytes: int = BUCKET_BYTES) -> Iterator[list[torch.Tensor]]:
    """The tensors in their order, cut into buckets of one device and type.

    >>> [len(bucket) for bucket in buckets_of([torch.zeros(3), torch.zeros(2), torch.zeros(4)], bucket_bytes=20)]
    [2, 1]
    """
    open_buckets: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    sizes: dict[tuple[torch.device, torch.dtype], int] = {}
    for tensor in tensors:
        kind, size = (tensor.device, tensor.dtype), tensor.numel() * tensor.element_size()
        if open_buckets.get(kind) and sizes[kind] + size > bucket_bytes:
            yield open_buckets.pop(kind)
            sizes[kind] = 0
        open_buckets.setdefault(kind, []).append(tensor)
        sizes[kind] = sizes.get(kind, 0) + size
    yield from open_buckets.values()
