"""What a loader draws its order from: the generators and the epoch numbers of its parts."""

from __future__ import annotations

from typing import Any

import torch


def parts_of(data: Any) -> list[Any]:
    """A loader, its samplers, and its data set, as far as it has them."""
    batch_sampler = getattr(data, "batch_sampler", None)
    found = [
        data,
        batch_sampler,
        getattr(data, "sampler", None),
        getattr(batch_sampler, "sampler", None),
        getattr(data, "dataset", None),
    ]
    return [one for one in found if one is not None]


def generators_of(data: Any) -> list[torch.Generator]:
    """The generators of their own that the parts draw from, each once."""
    found = [part if isinstance(part, torch.Generator) else getattr(part, "generator", None) for part in parts_of(data)]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def announce_epoch(data: Any, epoch: int) -> None:
    """Call ``set_epoch(epoch)`` on each part that has it, as `DistributedSampler` asks for before every epoch."""
    for part in {id(part): part for part in parts_of(data)}.values():
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)
