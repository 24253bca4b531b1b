"""How several ranks share an epoch: in rounds of one batch for each rank; rank r takes the r-th batch of a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

from graphtrain.data.loader import Loader, NumberedEpoch


def round_size(first: int, end: int | None, world_size: int, left: Sequence[int]) -> int:
    """The number of micro-batches in a round: one for each rank, or as many as the epoch and the open windows need.

    Arguments:
        first: the number of its first micro-batch in the epoch.
        end: the number of micro-batches in the epoch; None if unknown.
        left: for each open window, how many it still needs; 0 if none is open.

    >>> round_size(20, 23, 4, []), round_size(4, 23, 4, [2]), round_size(4, 23, 4, [0])
    (3, 2, 4)
    """
    return min([world_size, *([end - first] if end is not None else []), *(each for each in left if each > 0)])


@final
class RankBatches:
    """The batches of an epoch of a `Loader` that one of several ranks takes; it loads no others.

    Workers load ahead as long as every round has a batch for each rank; after a smaller round they are restarted.
    """

    def __init__(self, loader: Loader, epoch: NumberedEpoch, world_size: int) -> None:
        self.epoch = epoch
        self._loader, self._world_size = loader, world_size
        self._batches: Iterator[Any] = iter(())
        self._next = -1

    def batch(self, number: int, end: int) -> Any:
        """The batch of this number in an epoch of `end` batches."""
        if number != self._next:
            self.release()
            self._batches = self._loader.load(self.epoch, iter(range(number, end, self._world_size)))
        self._next = number + self._world_size
        return next(self._batches)

    def release(self) -> None:
        """End the workers; the next batch starts them again."""
        self._batches, self._next = iter(()), -1
