"""A fingerprint of data: enough to notice that it is not the data of the run that is resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from graphtrain.data.loader import Loader

# These types exactly: looking at a sample of them changes nothing. A class of the user may count its samples.
_PLAIN = (list, tuple, torch.Tensor, numpy.ndarray, numpy.memmap)
_INDICES = (list, tuple, range, torch.Tensor, numpy.ndarray)


def fingerprint(data: Any) -> dict[str, Any]:
    """The length of data, and a hash of a few samples where looking at them is without any effect.

    Samples are looked at in lists, tuples, tensors, NumPy arrays, `TensorDataset` and `Subset` of those. Any other data
    set may have a generator, a cursor or an open file, so only its length is read.

    >>> fingerprint([torch.ones(2), torch.zeros(2)])["length"]
    2
    """
    dataset = getattr(data, "dataset", data) if isinstance(data, Loader | DataLoader) else data
    return {"length": _length(data), "samples": _length(dataset), "hash": _hash_of_samples(dataset)}


def data_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words.

    >>> data_changes({"train_data": {"length": 3, "hash": "a"}}, {"train_data": {"length": 4, "hash": "b"}})
    ['train_data (length 3 -> 4)']
    """
    changes = []
    for name, after in now.items():
        before = saved.get(name, after)
        lengths = [key for key in ("length", "samples") if before.get(key) != after.get(key)]
        if lengths:
            changes.append(f"{name} ({lengths[0]} {before.get(lengths[0])} -> {after.get(lengths[0])})")
        elif before.get("hash") and after.get("hash") and before["hash"] != after["hash"]:
            changes.append(f"{name} (its samples)")
    return changes


def is_data(name: str, resource: Any) -> bool:
    """True for a resource that is data by its name: ``train_data``, ``val_data``, ..."""
    return name.endswith("data") and resource is not None


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


def _hash_of_samples(dataset: Any) -> str:
    length = _length(dataset) if _is_plain(dataset) else None
    if not length:
        return ""
    digest = hashlib.sha256()
    try:
        for index in sorted({0, length // 2, length - 1}):
            _feed(digest, dataset[index])
    except Exception:  # an index beyond the data, or a tensor without bytes: the run will raise it
        return ""
    return digest.hexdigest()[:16]


def _feed(digest: Any, value: Any) -> None:
    if type(value) is torch.Tensor:
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous()
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() and flat.ndim else repr(flat).encode())
    elif type(value) in (numpy.ndarray, numpy.memmap) or isinstance(value, numpy.generic):
        if not value.dtype.hasobject:  # the bytes of objects are their addresses
            digest.update(value.tobytes())
    elif type(value) is dict:
        for entry in value.items():
            _feed(digest, entry)
    elif type(value) in (list, tuple):
        for entry in value:
            _feed(digest, entry)
    elif value is None or type(value) in (str, bytes, int, float, bool):
        digest.update(repr(value).encode(errors="backslashreplace"))
    # Anything else has no form that is the same in another process.
