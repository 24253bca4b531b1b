"""A fingerprint of data: enough to say that it is not the data of the run that is gone on with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from graphtrain.data.loader import Loader
from graphtrain.state.random import HostRandomAside, seed_host


def fingerprint(data: Any) -> dict[str, Any]:
    """The length of data, and a hash of a few samples where looking at them has no effect and gives the same twice.

    Samples are looked at in sequences and in data sets that are read in this process: one that workers read may open
    files that must not be open before they are forked.

    >>> fingerprint([torch.ones(2), torch.zeros(2)])["length"]
    2
    """
    dataset = getattr(data, "dataset", data) if isinstance(data, Loader | DataLoader) else data
    found = {"length": _length(data), "samples": _length(dataset), "hash": ""}
    is_sequence = isinstance(dataset, Sequence) and not isinstance(dataset, str)
    read_here = isinstance(data, Loader | DataLoader) and data.num_workers == 0 and hasattr(dataset, "__getitem__")
    if isinstance(dataset, TensorDataset) or is_sequence or read_here:
        found["hash"] = _hash_of_samples(dataset)
    return found


def data_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words.

    >>> data_changes({"train_data": {"length": 3, "hash": "a"}}, {"train_data": {"length": 4, "hash": "b"}})
    ['train_data (length 3 -> 4)']
    """
    changes = []
    for name, one in now.items():
        before = saved.get(name)
        if before is None:
            continue
        lengths = [
            f"{key} {before.get(key)} -> {one.get(key)}"
            for key in ("length", "samples")
            if before.get(key) != one.get(key)
        ]
        if lengths:
            changes.append(f"{name} ({lengths[0]})")
        elif before.get("hash") and one.get("hash") and before["hash"] != one["hash"]:
            changes.append(f"{name} (its samples)")
    return changes


def is_data(name: str, resource: Any) -> bool:
    """True for a resource that is data by its name: ``train_data``, ``val_data``, ..."""
    return name.endswith("data") and resource is not None


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _hash_of_samples(dataset: Any) -> str:
    length = _length(dataset)
    if not length:
        return ""
    indices = sorted({0, length // 2, length - 1})
    with HostRandomAside():
        try:
            first, second = (_hash([_sample(dataset, index) for index in indices]) for _ in range(2))
        except Exception:  # a data set may refuse to be looked at outside its loader; the run will say why
            return ""
    return first if first == second else ""


def _sample(dataset: Any, index: int) -> Any:
    seed_host(index)
    return dataset[index]


def _hash(value: Any) -> str:
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()[:16]


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous()
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() and flat.ndim else repr(flat).encode())
    elif isinstance(value, Mapping):
        for key, one in value.items():
            digest.update(repr(key).encode())
            _feed(digest, one)
    elif isinstance(value, list | tuple):
        for one in value:
            _feed(digest, one)
    elif hasattr(value, "tobytes"):
        digest.update(value.tobytes())
    elif isinstance(value, str | bytes | int | float | bool | None):
        digest.update(repr(value).encode())
    # Anything else has no form that is the same in another process; it says nothing.
