"""Loaders as they are supplied: several in one mapping, and data of which each of several ranks has its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, final

import numpy
import torch

from graphtrain.errors import DataError
from graphtrain.ranks import current_ranks


@final
class RankLocal:
    """What `rank_local` returns among several ranks. It has no length: that of the others is not known before."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


def rank_local(data: Any) -> Any:
    """Data that is divided among ranks already: every rank gives its own, and all of it is trained on.

    Any other data is the same on all ranks, which take turns in it by the numbers of its batches. Of data that divides
    itself, by the rank or by its files, a round has one batch of each rank. The epoch ends for all of them where one
    has no further batch; what others have fetched for that round is dropped. Such a run is resumed with as many
    processes as it began with.

    Arguments:
        data: what `train_data` and `val_data` may be: a list, a DataLoader, any iterable. In one process it is returned
            as it is.

    >>> rank_local([1, 2])
    [1, 2]
    """
    return data if current_ranks().world_size == 1 else RankLocal(data)


def own_data(data: Any) -> Any:
    """What `rank_local` was given, or data as it is."""
    return data.data if isinstance(data, RankLocal) else data


# What is no loader: the columns of one data set, as they come in a mapping too.
_NO_LOADERS = (torch.Tensor, numpy.ndarray, str, bytes, int, float, bool, type(None))


def are_loaders(data: Any) -> bool:
    """True for a mapping of loaders; the columns of a data set are none.

    >>> are_loaders({"clean": [1, 2], "noisy": [3]}), are_loaders({"inputs": torch.ones(2)}), are_loaders({})
    (True, False, False)
    """
    if not isinstance(data, Mapping) or not data:
        return False
    return not any(isinstance(own_data(loader), _NO_LOADERS) for loader in data.values())


def loaders_of(data: Any) -> dict[str, Any]:
    """The loaders in a mapping, by name; none for other data.

    Raises:
        DataError: a name is no text, is empty, or has a slash, which separates parts of the names of metrics.

    >>> loaders_of({"clean": [1]}), loaders_of([1])
    ({'clean': [1]}, {})
    """
    if not are_loaders(data):
        return {}
    for name in data:
        if not isinstance(name, str) or not name or "/" in name:
            raise DataError(
                f"a loader is named {name!r}, and metrics have its name, as in `val/NAME/loss`",
                "name each loader in the mapping by a text without a slash",
            )
    return dict(data)


def by_name(resources: Mapping[str, Any], drawn: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Resources by name, and instead of a mapping of loaders each of them; `drawn` as for `is_data`.

    >>> dict(by_name({"val_data": {"clean": [1]}, "train_data": [2]}))
    {'val_data.clean': [1], 'train_data': [2]}
    """
    for name, value in resources.items():
        if is_data(name, value, drawn) and are_loaders(value):
            yield from ((f"{name}.{key}", loader) for key, loader in value.items())
        else:
            yield name, value


def is_data(name: str, resource: Any, drawn: Collection[str] = ()) -> bool:
    """True for data: a resource that nodes draw batches from, or with a name like ``val_data``, and each loader in it.

    Arguments:
        drawn: the names of the resources that nodes draw batches from. Default: they are not known.
    """
    name = name.partition(".")[0]
    return resource is not None and (name in drawn or name.endswith("data"))
