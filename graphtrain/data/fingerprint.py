"""A fingerprint of data: enough to notice that it is not the data of the run that is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from graphtrain.data.loader import Loader
from graphtrain.data.samplers import samples_per_batch


def fingerprint(data: Any) -> dict[str, Any]:
    """The length of data; of a loader, its settings and the number of samples too.

    >>> fingerprint([1, 2])
    {'length': 2}
    """
    settings = _settings(data) if isinstance(data, Loader | DataLoader) else {}
    return {"length": _length(data), **settings}


def data_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words.

    >>> data_changes({"train_data": {"length": 3}}, {"train_data": {"length": 4}})
    ['train_data (length 3 -> 4)']
    """
    changes = []
    for name, after in now.items():
        before = saved.get(name, after)
        words = [f"{key} {before[key]} -> {after[key]}" for key in after if before.get(key, after[key]) != after[key]]
        if words:
            changes.append(f"{name} ({', '.join(words)})")
    return changes


def _settings(loader: Loader | DataLoader[Any]) -> dict[str, Any]:
    """The settings of a loader on which its batches may depend."""
    size = samples_per_batch(loader)
    order = loader.batch_sampler if size is None else loader.sampler
    kind = None if order is None else type(order).__name__
    own: dict[str, Any] = {"shuffle": loader.shuffle, "sampler": kind} if isinstance(loader, Loader) else {}
    if isinstance(loader, DataLoader):  # workers of a `Loader` change no batch
        is_usual = kind in ("RandomSampler", "SequentialSampler", "_InfiniteConstantSampler")
        own = {"shuffle": kind == "RandomSampler", "sampler": None if is_usual else kind, "workers": loader.num_workers}
    name, samples = type(loader).__name__, _length(loader.dataset)
    return {"samples": samples, "loader": name, "batch size": size, "drop_last": loader.drop_last, **own}


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except Exception:  # code of the user: if it is an error, the run will raise it
        return None
