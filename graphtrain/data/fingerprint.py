"""A fingerprint of data: enough to notice that it is not the data of the run that is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from graphtrain.data.loader import Loader
from graphtrain.data.loaders import own_data
from graphtrain.data.samplers import samples_per_batch


def fingerprint(data: Any) -> dict[str, Any]:
    """The length of data; of a loader, its settings and the number of samples too.

    >>> fingerprint([1, 2])
    {'length': 2}
    """
    data = own_data(data)
    is_loader = isinstance(data, Loader | DataLoader)
    dataset: Any = getattr(data, "dataset", data) if is_loader else data
    return {"length": _length(data), **(_settings(data, dataset) if is_loader else {})}


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
