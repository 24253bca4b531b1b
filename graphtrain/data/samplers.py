"""What determines the order and the length of an epoch: generators, `set_epoch`, samplers and `indices`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from graphtrain.data.loaders import loaders_of
from graphtrain.errors import DataError
from graphtrain.state.classes import category_of
from graphtrain.state.generators import AnyGenerator, generator_of, named_generators

# Attributes under which data holds its parts; a Subset or a wrapper holds another dataset.
_PARTS = ("batch_sampler", "sampler", "dataset", "transform", "target_transform", "collate_fn")
_AT_ONCE = (DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


def parts_of(*loaders: Any) -> list[Any]:
    """Loaders with their samplers, transforms and data sets, at any depth: each once."""
    waiting, parts = [*loaders], dict[int, Any]()
    for part in waiting:  # the list grows meanwhile
        if part is not None and id(part) not in parts:
            parts[id(part)], attributes = part, getattr(part, "__dict__", {})
            waiting += [attributes[name] for name in _PARTS if name in attributes]
    return [*parts.values()]


def generator_objects(data: Any) -> list[Any]:
    """The generators that are attributes of loaders and of their samplers, data sets, transforms and `collate_fn`.

    >>> len(generator_objects(DataLoader(range(4), sampler=RandomSampler(range(4), generator=torch.Generator()))))
    1
    """
    parts = parts_of(*loaders_of(data).values() or [data])
    values = [value for part in parts for value in (part, *getattr(part, "__dict__", {}).values())]
    return [*{id(value): value for value in values if category_of(type(value)) == "generator"}.values()]


def generators_of(data: Any) -> list[AnyGenerator]:
    """The generators of `generator_objects`, behind one interface."""
    return list(map(generator_of, generator_objects(data)))


def all_generators(data: Any) -> list[AnyGenerator]:
    """All generators that data may draw from, including the global ones."""
    return [*generators_of(data), *named_generators().values()]


def set_states(generators: Iterable[AnyGenerator], states: Iterable[Any]) -> None:
    """Set the generators to these states; whichever list is longer, the rest is ignored."""
    for generator, saved in zip(generators, states, strict=False):
        generator.set_state(saved)


def announce_epoch(data: Any, epoch: int) -> None:
    """Call ``set_epoch(epoch)`` on every part that has it, as `DistributedSampler` requires before every epoch."""
    for part in parts_of(data):
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)


def draws_at_once(loader: DataLoader[Any]) -> bool:
    """True if the sampler is one of torch's, which draw an order when an epoch begins, or from their own generator.

    >>> draws_at_once(DataLoader(range(4), 2, shuffle=True)), draws_at_once(DataLoader(range(4), 2, sampler=[3, 1]))
    (True, False)
    """
    batch_sampler: Any = loader.batch_sampler
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        return False
    return type(loader.sampler if batch_sampler is None else batch_sampler.sampler) in _AT_ONCE


def samples_per_batch(loader: Any) -> int | None:
    """The batch size of a loader; None if its batches are not determined by a size.

    >>> samples_per_batch(DataLoader(range(8), 4)), samples_per_batch(DataLoader(range(8), None))
    (4, 1)
    >>> samples_per_batch(DataLoader(range(4), batch_sampler=[[0, 1], [2, 3]])), samples_per_batch([1, 2])
    (None, None)
    """
    size, is_listed = getattr(loader, "batch_size", None), getattr(loader, "batch_sampler", loader) is not None
    if is_listed and not (isinstance(loader, DataLoader) and size is not None):
        return None
    return (size or 1) if size is None or type(size) is int else None


def length_of(data: Any) -> int | None:
    """``len(data)``, or None if it has no length."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def selection_of(indices: Any, length: int) -> torch.Tensor:
    """A copy of `indices`, a sequence or an array of one dimension, as a tensor of integers on the CPU.

    Raises:
        DataError: there are none, or one is not a whole number from 0 to below `length`.

    >>> selection_of(range(2, 8, 3), 8)
    tensor([2, 5])
    """
    try:
        numbers = torch.as_tensor(indices).detach()
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.empty(())
    is_whole = not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)
    if not is_whole or numbers.dim() != 1 or not len(numbers) or numbers.min() < 0 or numbers.max() >= length:
        raise DataError(
            f"`indices` must be whole numbers from 0 to {length - 1}, at least one; got {indices!r:.80}",
            "as in [0, 4, 7], or a tensor of integers with one dimension; of a mask, mask.nonzero().flatten()",
        )
    return numbers.to("cpu", torch.int64, copy=True)
