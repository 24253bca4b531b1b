"""Data of which each of several ranks has its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from graphtrain.ranks import current_ranks


@final
class RankLocal:
    """What `rank_local` returns among several ranks.

    It has no length: that of the others is known once they have said theirs.

    Attributes:
        data: what this rank has.
    """

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
