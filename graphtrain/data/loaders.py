"""Loaders as resources: a single one, or several in a mapping."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.errors import DataError
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import numpy
    import torch
else:
    numpy = lazy_import("numpy")
    torch = lazy_import("torch")


def are_loaders(data: Any) -> bool:
    """True for a mapping of loaders; False for a mapping of the columns of a data set.

    >>> are_loaders({"clean": [1, 2], "noisy": [3]}), are_loaders({"inputs": torch.ones(2)}), are_loaders({})
    (True, False, False)
    """
    if not isinstance(data, Mapping) or not data:
        return False
    columns = (torch.Tensor, numpy.ndarray, str, bytes, int, float, bool, type(None))
    return not any(isinstance(loader, columns) for loader in data.values())


def loaders_of(data: Any) -> dict[str, Any]:
    """The loaders in a mapping, by name; none for other data.

    Raises:
        DataError: a name is not a string, is empty, or has a slash, which separates parts of the names of metrics.

    >>> loaders_of({"clean": [1]}), loaders_of([1])
    ({'clean': [1]}, {})
    """
    if not are_loaders(data):
        return {}
    for name in data:
        if not isinstance(name, str) or not name or "/" in name:
            raise DataError(
                f"a loader is named {name!r}, which cannot be part of a metric such as `val/NAME/loss`",
                "name each loader in the mapping by a string without a slash",
            )
    return dict(data)


def by_name(resources: Mapping[str, Any], drawn: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Resources by name, with each loader of a mapping by itself; for `drawn`, see `is_data`.

    >>> dict(by_name({"val_data": {"clean": [1]}, "train_data": [2]}))
    {'val_data.clean': [1], 'train_data': [2]}
    """
    for name, value in resources.items():
        if is_data(name, value, drawn) and are_loaders(value):
            yield from ((f"{name}.{key}", loader) for key, loader in value.items())
        else:
            yield name, value


def is_data(name: str, resource: Any, drawn: Collection[str] = ()) -> bool:
    """True for a resource that nodes draw batches from, or with a name like ``val_data``; also for a loader in one.

    Arguments:
        drawn: the names of the resources that nodes draw batches from. Default: unknown, the name decides.
    """
    name = name.partition(".")[0]
    return resource is not None and (name in drawn or name.endswith("data"))
