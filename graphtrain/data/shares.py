"""The batches of a `Loader` that one of several ranks loads, and none of the others.

Ranks go through an epoch in rounds. Which batch a rank gets in a round follows from the batches before and from the
windows that they fill, so workers load ahead. Where a window is stepped before it is full, they start again from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from graphtrain.data.loader import Loader, NumberedEpoch
from graphtrain.data.source import Opened, Ordered
from graphtrain.data.workers import shut_down
from graphtrain.data.wrapped import Wrapped
from graphtrain.kind.batch_limit import BatchLimit


class Window(NamedTuple):
    """A window of backward passes, or one that opens next.

    Attributes:
        left: the micro-batches that it still takes; none if it is full, and was not stepped.
        next_size: how many the window after it takes.
    """

    left: int
    next_size: int


@dataclass(frozen=True)
class WindowCounter:
    """What counts the micro-batches of a window.

    Attributes:
        node: the path of the node that counts.
        fields: of that node.
        count, window: the fields that hold how many there are, and how many the open window takes.
        next_size: returns how many the window takes that opens next.
    """

    node: str
    fields: Mapping[str, Any]
    count: str
    window: str
    next_size: Callable[[], int]

    def now(self) -> Window:
        """The window that is open, or that opens next."""
        size, count = self.next_size(), self.fields[self.count]
        return Window((self.fields[self.window] if count else size) - count, size)


@final
class Windows:
    """The windows that the batches of a node fill.

    Arguments:
        counters: what counts them. Default: nothing does.
        are_expected: True if gradients of these batches are accumulated all the same. Default: False.
    """

    def __init__(self, counters: Sequence[WindowCounter] = (), *, are_expected: bool = False) -> None:
        self.counters, self.are_expected = counters, are_expected

    def __call__(self) -> list[Window]:
        return [counter.now() for counter in self.counters]

    def unstepped(self) -> str | None:
        """The path of a node that counts a window which is full; None where all take more."""
        return next((counter.node for counter in self.counters if counter.now().left <= 0), None)


def round_size(first: int, end: int | None, world_size: int, windows: Sequence[Window]) -> int:
    """The micro-batches of a round: one for each rank, or as many as the epoch and the open windows still have.

    Arguments:
        first: the number of its first micro-batch in the epoch.
        end: how many the epoch has; None where that is not known.

    >>> round_size(20, 23, 4, [])
    3
    >>> round_size(4, 23, 4, [Window(left=2, next_size=6)])
    2
    >>> round_size(4, 23, 4, [Window(left=0, next_size=6)])
    4
    """
    rest = [end - first] if end is not None else []
    return min([world_size, *rest, *(window.left for window in windows if window.left > 0)])


def planned_rounds(first: int, end: int, world_size: int, windows: Sequence[Window]) -> Iterator[tuple[int, int]]:
    """The rounds of an epoch from one on: the number of its first micro-batch, and how many it has.

    Windows are assumed to be stepped as soon as they are full, and to stay of one size.

    >>> list(planned_rounds(0, 8, 2, [Window(left=3, next_size=3)]))
    [(0, 2), (2, 1), (3, 2), (5, 1), (6, 2)]
    """
    left = [window.left for window in windows]
    while first < end:
        now = [Window(rest, window.next_size) for rest, window in zip(left, windows, strict=True)]
        size = round_size(first, end, world_size, now)
        yield first, size
        first += size
        left = [rest - size if rest > size else window.next_size for rest, window in zip(left, windows, strict=True)]


@final
class Share(Iterator[Any]):
    """The batches of one epoch for one rank; workers load them ahead, as long as rounds are as they were planned.

    Arguments:
        epoch: the epoch.
        end: how many micro-batches it has for all ranks.
        rank, world_size: this rank, of how many.
        first: the micro-batches that are consumed.
        windows: asked whenever rounds are planned.
        loader: of which the epoch is.
        again: the number of a batch that is loaded before all others, for `redrawn`. Default: none.
        stands_in: True loads the first batch of a round that has none for this rank. Default: False.

    Attributes:
        redrawn: that batch.
    """

    def __init__(
        self,
        epoch: NumberedEpoch,
        end: int,
        rank: int,
        world_size: int,
        first: int,
        windows: Windows,
        loader: Loader,
        again: int | None = None,
        stands_in: bool = False,
    ) -> None:
        self.epoch, self.end, self.stands_in = epoch, end, stands_in
        self._rank, self._world_size, self._windows, self._loader = rank, world_size, windows, loader
        self._rounds, self._batches = self._loaded(first, [] if again is None else [again])
        self.redrawn = [] if again is None else [next(self._batches)]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The batch of this rank in the round that was begun last, in which it has one."""
        return next(self._batches)

    def _loaded(self, first: int, again: Sequence[int] = ()) -> tuple[Iterator[tuple[int, int]], Iterator[Any]]:
        """The rounds from one on as they are planned, and the batches of this rank in them."""
        rounds, ahead = itertools.tee(planned_rounds(first, self.end, self._world_size, self._windows()))
        rank, stands_in = self._rank, self.stands_in
        numbers = (first + rank * (rank < size) for first, size in ahead if rank < size or stands_in)
        return rounds, self._loader.load(self.epoch, itertools.chain(again, numbers))

    def begin_round(self, first: int, size: int) -> None:
        """Begin a round; if another was planned, batches are loaded again from here.

        Arguments:
            first, size: the number of its first micro-batch, and how many it has.
        """
        if next(self._rounds, None) != (first, size):
            shut_down(self._batches)
            self._rounds, self._batches = self._loaded(first)
            planned = next(self._rounds)
            assert planned == (first, size), "the round follows from the windows of now"

    def release(self) -> None:
        """End the workers; the next round starts them again."""
        if self._loader.release(self._batches):
            self._rounds = iter(())


@final
class Shared(Wrapped):
    """A `Loader` of which every rank loads its own batches.

    Arguments:
        source: that of all batches.
        limit: the most batches in an epoch.
        windows: those that the batches fill.
        stands_in: as of `Share`.
    """

    _source: Ordered

    def __init__(
        self,
        source: Ordered,
        rank: int,
        world_size: int,
        limit: BatchLimit,
        windows: Windows,
        *,
        stands_in: bool = False,
    ) -> None:
        super().__init__(source)
        self._rank, self._world_size, self._stands_in = rank, world_size, stands_in
        self._limit, self._windows = limit, windows

    def open(self, epoch: int) -> Opened:
        share = self.reopen(epoch, 0, {})
        return Opened(share, self._source.length(share.epoch), {})

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Share:
        numbered = self._source.numbered(epoch)
        limit = self._limit.of(numbered.length)
        end = numbered.length if limit is None else min(numbered.length, limit)
        number = drawn - again if again else None
        loader, stands_in = self._source.loader, self._stands_in
        share = Share(numbered, end, self._rank, self._world_size, drawn, self._windows, loader, number, stands_in)
        # What follows are batches of other ranks.
        self.redrawn = [*share.redrawn, *[None] * (again - 1)] if again else []
        return share

    def release(self, batches: Iterator[Any]) -> bool:
        if isinstance(batches, Share):
            batches.release()
        return False
