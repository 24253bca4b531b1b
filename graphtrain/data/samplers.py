"""What data draws its order from: the generators and the epoch numbers of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from graphtrain.state.generators import AnyGenerator, generator_of

# By these names data holds the parts that it is made of; a Subset or a wrapper holds a further data set.
_PARTS = ("batch_sampler", "sampler", "dataset", "transform", "target_transform", "collate_fn")


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


def generators_of(data: Any) -> list[AnyGenerator]:
    """The generators of their own that the parts draw from, each once, whatever their type.

    Attributes that hold one directly are found, on a loader, its samplers and `collate_fn`, its data set, the data sets
    inside that, and their transforms.

    >>> import torch
    >>> len(generators_of(DataLoader(range(4), sampler=RandomSampler(range(4), generator=torch.Generator()))))
    1
    """
    found: dict[int, AnyGenerator] = {}
    for part in _all_parts(data):
        for value in (part, *getattr(part, "__dict__", {}).values()):
            if (generator := generator_of(value)) is not None:
                found.setdefault(id(value), generator)
    return list(found.values())


def _all_parts(data: Any) -> Iterator[Any]:
    waiting, seen = [data], set()
    while waiting:
        part = waiting.pop(0)
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        held = getattr(part, "__dict__", {})
        waiting += [held[name] for name in _PARTS if name in held]


def announce_epoch(data: Any, epoch: int) -> None:
    """Call ``set_epoch(epoch)`` on each part that has it, as `DistributedSampler` asks for before every epoch."""
    for part in {id(part): part for part in parts_of(data)}.values():
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)


def draws_at_once(loader: DataLoader[Any]) -> bool:
    """True if it is known that an epoch's order is drawn when it begins, or from a generator that nobody else has.

    >>> import torch
    >>> own = RandomSampler(range(4), replacement=True, generator=torch.Generator())
    >>> draws_at_once(DataLoader(range(4), 2, shuffle=True)), draws_at_once(DataLoader(range(4), 2, sampler=own))
    (True, False)
    """
    batch_sampler: Any = loader.batch_sampler
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler and not of_torchdata(type(batch_sampler)):
        return False
    sampler: Any = loader.sampler if batch_sampler is None else batch_sampler.sampler
    if type(sampler) is RandomSampler or (of_torchdata(type(sampler)) and type(sampler).__name__ == "RandomSampler"):
        one_draw = not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
        return sampler.generator is None or one_draw
    return type(sampler) in (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def of_torchdata(kind: type) -> bool:
    """True for one of torchdata's own classes; torchdata need not be installed."""
    return kind.__module__.partition(".")[0] == "torchdata"
