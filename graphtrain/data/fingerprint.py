"""A fingerprint of data: enough to notice that it is not the data of the run that is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from graphtrain.data.loader import Loader
from graphtrain.data.loaders import own_data
from graphtrain.data.samplers import samples_per_batch


def fingerprint(data: Any) -> dict[str, Any]:
    """The length of data, how many samples it has, and the settings of a loader.

    >>> fingerprint([1, 2])
    {'length': 2, 'samples': 2}
    """
    data = own_data(data)
    dataset: Any = getattr(data, "dataset", data) if isinstance(data, Loader | DataLoader) else data
    facts = {"length": _length(data), "samples": _length(dataset)}
    return facts | {"settings": _settings(data)} if isinstance(data, Loader | DataLoader) else facts


def data_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words.

    >>> data_changes({"train_data": {"length": 3}}, {"train_data": {"length": 4}})
    ['train_data (length 3 -> 4)']
    >>> before, after = ({"d": {"length": 9, "settings": {"batch size": size}}} for size in (4, 8))
    >>> data_changes(before, after)
    ['d: batch size 8, was 4']
    """
    changes = []
    for name, after in now.items():
        before = saved.get(name, after)
        lengths = [key for key in ("length", "samples") if before.get(key) != after.get(key)]
        settings = _other_settings(before, after)
        if settings:
            changes.append(f"{name}: {'; '.join(settings)}")
        if "samples" in lengths or (lengths and not settings):  # a batch size changes the length too
            changes.append(f"{name} ({lengths[0]} {before.get(lengths[0])} -> {after.get(lengths[0])})")
    return changes


def _other_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The settings that differ, in words."""
    saved, now = before.get("settings"), after.get("settings")
    if not isinstance(saved, Mapping) or not isinstance(now, Mapping):
        return []
    return [
        f"{name} {'none' if now[name] is None else now[name]}, was {'none' if saved[name] is None else saved[name]}"
        for name in now
        if name in saved and saved[name] != now[name]
    ]


def _settings(loader: Any) -> dict[str, Any]:
    """The settings of a loader on which its batches may depend."""
    order = loader.batch_sampler if samples_per_batch(loader) is None else loader.sampler
    kind = None if order is None else type(order).__name__
    is_shuffled = kind == "RandomSampler" if isinstance(loader, DataLoader) else loader.shuffle
    is_usual = kind in ("RandomSampler", "SequentialSampler", "_InfiniteConstantSampler")
    settings = {
        "loader": type(loader).__name__,
        "batch size": samples_per_batch(loader),
        "shuffle": is_shuffled,
        "sampler": None if isinstance(loader, DataLoader) and is_usual else kind,
        "drop_last": loader.drop_last,
    }
    # Of a `Loader` the number of workers changes no batch.
    return settings if isinstance(loader, Loader) else settings | {"workers": loader.num_workers}


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except Exception:  # code of the user: if it is an error, the run will raise it
        return None
