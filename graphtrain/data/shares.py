"""The batches of a `Loader` that one of several ranks loads, and none of the others.

Ranks go through an epoch in rounds of one batch for each of them, or of as many as the epoch and the open windows still
take; rank r takes the r-th.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, final

from graphtrain.data.loader import Loader, NumberedEpoch
from graphtrain.data.source import Numbered, Opened
from graphtrain.data.workers import shut_down
from graphtrain.data.wrapped import Wrapped
from graphtrain.kind.batch_limit import BatchLimit


class Windows(NamedTuple):
    """The windows of backward passes that the batches of a node fill.

    Attributes:
        left: by the path of the node that counts one, returns how many micro-batches it still takes, or the one that
            opens next; none if it is full, and was not stepped.
        are_expected: True if nothing counts, and gradients of these batches are accumulated all the same.
    """

    left: Mapping[str, Callable[[], int]] = MappingProxyType({})
    are_expected: bool = False

    def __call__(self) -> list[int]:
        return [left() for left in self.left.values()]


def round_size(first: int, end: int | None, world_size: int, left: Sequence[int]) -> int:
    """The micro-batches of a round: one for each rank, or as many as the epoch and the open windows still have.

    Arguments:
        first: the number of its first micro-batch in the epoch.
        end: how many the epoch has; None where that is not known.
        left: how many each open window still takes.

    >>> round_size(20, 23, 4, []), round_size(4, 23, 4, [2]), round_size(4, 23, 4, [0])
    (3, 2, 4)
    """
    rest = [end - first] if end is not None else []
    return min([world_size, *rest, *(each for each in left if each > 0)])


@final
class Share:
    """The batches of one epoch for one rank; `end` is how many it has for all of them.

    Workers load ahead what the rank takes while every round has a batch for each; after another round they start again.
    """

    def __init__(self, loader: Loader, epoch: NumberedEpoch, end: int, world_size: int) -> None:
        self.epoch, self.end = epoch, end
        self._loader, self._world_size = loader, world_size
        self._batches: Iterator[Any] = iter(())
        self._next = -1

    def batch(self, number: int) -> Any:
        """The batch of this number."""
        if number != self._next:
            shut_down(self._batches)
            self._batches = self._loader.load(self.epoch, iter(range(number, self.end, self._world_size)))
        self._next = number + self._world_size
        return next(self._batches)

    def release(self) -> None:
        """End the workers; the next batch starts them again."""
        self._loader.release(self._batches)
        self._next = -1


@final
class Shared(Wrapped):
    """A `Loader` of which every rank loads its own batches: what is opened is a `Share`."""

    source: Numbered

    def __init__(self, source: Numbered, world_size: int, limit: BatchLimit) -> None:
        super().__init__(source)
        self._world_size, self._limit = world_size, limit
        self._share: Share | None = None

    def open(self, epoch: int, indices: Any = None) -> Opened:
        state = self.source.begin(epoch, indices)
        share = self.reopen(epoch, 0, state)
        return Opened(share, share.end, state)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Share:
        self.source.continued(epoch, state)
        order = self.source.epoch
        most = self._limit.of(len(order))
        end = len(order) if most is None else min(len(order), most)
        self._share = Share(self.source.data, order, end, self._world_size)
        return self._share

    def release(self) -> bool:
        if self._share is not None:
            self._share.release()
        return False
