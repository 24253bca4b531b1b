"""A fingerprint of data: enough to notice that it is not the data of the run that is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from graphtrain.data.loader import Loader
from graphtrain.data.loaders import by_name, is_data
from graphtrain.data.samplers import length_of, samples_per_batch


def fingerprint(data: Any) -> dict[str, Any]:
    """The length of data; of a loader, the number of samples and the settings on which its batches may depend.

    >>> fingerprint([1, 2])
    {'length': 2}
    """
    facts: dict[str, Any] = {"length": length_of(data)}
    if isinstance(data, Loader | DataLoader):
        size = samples_per_batch(data)
        order = data.batch_sampler if size is None else data.sampler
        facts |= {"samples": length_of(data.dataset), "loader": type(data).__name__, "batch size": size}
        facts |= {"drop_last": data.drop_last, "sampler": None if order is None else type(order).__name__}
        # Workers of a `Loader` change no batch.
        facts |= {"shuffle": data.shuffle} if isinstance(data, Loader) else {"workers": data.num_workers}
    return facts


def fingerprints(resources: Mapping[str, Any]) -> dict[str, Any]:
    """The fingerprint of each data among resources, by name."""
    return {name: fingerprint(resource) for name, resource in by_name(resources) if is_data(name, resource)}


def data_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words.

    >>> data_changes({"train_data": {"length": 3}}, {"train_data": {"length": 4}})
    ['train_data (length 3 -> 4)']
    """
    changes = []
    for name, after in now.items():
        before = saved.get(name, after)
        words = [f"{key} {before[key]} -> {after[key]}" for key in after if before.get(key, after[key]) != after[key]]
        changes += [f"{name} ({', '.join(words)})"] if words else []
    return changes
