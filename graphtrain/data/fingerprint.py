"""A fingerprint of data: enough to notice that it is not the data of the run that is resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from graphtrain.data.loader import Loader
from graphtrain.data.loaders import own_data
from graphtrain.data.samplers import samples_per_batch
from graphtrain.state.content import content_hash

# These types exactly: looking at a sample of them changes nothing. A class of the user may count its samples.
_PLAIN = (list, tuple, torch.Tensor, numpy.ndarray, numpy.memmap)
_INDICES = (list, tuple, range, torch.Tensor, numpy.ndarray)


def fingerprint(data: Any) -> dict[str, Any]:
    """The length of data, the settings of a loader, and a hash of a few samples where looking at them has no effect.

    Samples are looked at in lists, tuples, tensors, NumPy arrays, `TensorDataset` and `Subset` of those. Any other data
    set may have a generator, a cursor or an open file, so only its length is read.

    >>> fingerprint([torch.ones(2), torch.zeros(2)])["length"]
    2
    """
    data = own_data(data)
    is_loader = isinstance(data, Loader | DataLoader)
    dataset: Any = getattr(data, "dataset", data) if is_loader else data
    facts = {"length": _length(data), **(_settings(data, dataset) if is_loader else {}), "hash": ""}
    length = _length(dataset)
    if length and _is_plain(dataset):
        with contextlib.suppress(Exception):  # an index beyond the data, or a tensor without bytes: the run raises it
            samples = [dataset[index] for index in sorted({0, length // 2, length - 1})]
            facts["hash"] = content_hash(samples)[:16]
    return facts


def data_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words.

    >>> data_changes({"train_data": {"length": 3, "hash": "a"}}, {"train_data": {"length": 4, "hash": "b"}})
    ['train_data (length 3 -> 4)']
    """
    changes = []
    for name, after in now.items():
        before = saved.get(name, after)
        differing = [key for key in after if before.get(key, after[key]) != after[key]]
        words = [f"{key} {before[key]} -> {after[key]}" for key in differing if key != "hash"]
        if words or ("hash" in differing and after["hash"]):
            changes.append(f"{name} ({', '.join(words) or 'its samples'})")
    return changes


def _settings(loader: Any, dataset: Any) -> dict[str, Any]:
    """The settings of a loader on which its batches may depend."""
    order = loader.batch_sampler if samples_per_batch(loader) is None else loader.sampler
    kind = None if order is None else type(order).__name__
    is_shuffled = kind == "RandomSampler" if isinstance(loader, DataLoader) else loader.shuffle
    is_usual = kind in ("RandomSampler", "SequentialSampler", "_InfiniteConstantSampler")
    return {
        "samples": _length(dataset),
        "loader": type(loader).__name__,
        "batch size": samples_per_batch(loader),
        "shuffle": is_shuffled,
        "sampler": None if isinstance(loader, DataLoader) and is_usual else kind,
        "drop_last": loader.drop_last,
        # Those of a `Loader` change no batch.
        **({"workers": loader.num_workers} if isinstance(loader, DataLoader) else {}),
    }


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except Exception:  # code of the user: if it is an error, the run will raise it
        return None


def _is_plain(dataset: Any) -> bool:
    """True where a sample can be looked at without any effect."""
    while type(dataset) is Subset:
        if type(dataset.indices) not in _INDICES:
            return False
        dataset = dataset.dataset
    if type(dataset) is TensorDataset:
        return all(type(tensor) is torch.Tensor for tensor in dataset.tensors)
    return type(dataset) in _PLAIN
