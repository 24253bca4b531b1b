"""The batches of a `Loader` that one of several ranks loads, and none of the others.

Ranks go through an epoch in rounds. Which batch a rank gets in a round follows from the batches before and from the
windows that they fill, so rounds are planned ahead, and workers load ahead by that plan. Where a round turns out
otherwise, as where a window is stepped before it is full, the plan is made again from there.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from graphtrain.data.loader import Loader, NumberedEpoch
from graphtrain.data.source import Opened, Ordered
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

    Attributes:
        epoch: counts the batches of an epoch which does not end with its data: no round goes beyond its end. None for
            one that does.
    """

    epoch: WindowCounter | None = None

    def __init__(self, counters: Sequence[WindowCounter] = (), *, are_expected: bool = False) -> None:
        self.counters, self.are_expected = counters, are_expected

    def __call__(self) -> list[Window]:
        counters = self.counters if self.epoch is None else (*self.counters, self.epoch)
        return [counter.now() for counter in counters]

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
class Share:
    """The batches of one epoch for one rank, loaded ahead.

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
        self._due: deque[int] = deque()  # the numbers that are planned, and not asked for yet
        self._asked: deque[int] = deque()  # those asked for, and not fetched yet,
        self._stale = 0  # of which so many are of an older plan
        self._early: deque[Any] = deque()  # the next batch, where it was fetched one round early
        self._rounds: deque[tuple[int, int]] = deque()  # those planned whose time has not come
        self._plan = planned_rounds(first, end, world_size, windows())
        if again is not None:
            self._due.append(again)
        self._batches: Iterator[Any] | None = None
        self._begin_loading()
        self.redrawn = [self._fetch()] if again is not None else []

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        """The number of the batch to load next, which is asked for as workers are free."""
        while not self._due:
            self._plan_round()
        self._asked.append(self._due.popleft())
        return self._asked[-1]

    def _plan_round(self) -> None:
        first, size = next(self._plan)
        self._rounds.append((first, size))
        if self._rank < size:
            self._due.append(first + self._rank)
        elif self.stands_in:
            self._due.append(first)

    def begin_round(self, first: int, size: int) -> bool:
        """Note the round that comes; False if another was planned, so that what was loaded ahead is of no use.

        Arguments:
            first, size: the number of its first micro-batch, and how many it has.
        """
        if not self._rounds:
            self._plan_round()
        if self._rounds.popleft() == (first, size):
            return True
        for planned in (self._rounds, self._due, self._early):
            planned.clear()
        self._stale = len(self._asked)
        self._plan = planned_rounds(first, self.end, self._world_size, self._windows())
        self._plan_round()
        assert self._rounds.popleft() == (first, size), "the round follows from the windows of now"
        return False

    def fetch(self) -> Any:
        """The batch of this rank in the round that was begun last, in which it has one."""
        return self._early.popleft() if self._early else self._fetch()

    def fetch_early(self) -> list[Any]:
        """The batch of a later round, as it is planned, which `fetch` returns then; nothing if there is none."""
        if self._early:
            return []
        try:
            while not self._due and len(self._asked) == self._stale:
                self._plan_round()
        except StopIteration:
            return []
        self._early.append(self._fetch())
        return [*self._early]

    def _begin_loading(self) -> Iterator[Any]:
        if self._batches is None:
            self._batches = self._loader.load(self.epoch, _Numbers(weakref.ref(self)))
        return self._batches

    def _fetch(self) -> Any:
        """The next batch that is planned; those of an older plan come first, and are dropped."""
        while True:
            batch = next(self._begin_loading(), self)
            if batch is self:  # the older plan was at its end, and workers have ended
                assert self._due, "another batch is planned"
                self._batches = None
                continue
            self._asked.popleft()
            if not self._stale:
                return batch
            self._stale -= 1

    def release(self) -> None:
        """End the workers. What they were asked for is asked for again."""
        if self._batches is not None and self._loader.release(self._batches):
            self._due.extendleft(reversed([*self._asked][self._stale :]))
            self._asked.clear()
            self._stale, self._batches = 0, None


@final
class _Numbers(Iterator[int]):
    """What a share asks for, held by its workers: not the share itself, which holds the loader that holds them."""

    def __init__(self, share: weakref.ref[Share]) -> None:
        self._share = share

    def __next__(self) -> int:
        share = self._share()
        assert share is not None, "its batches are fetched by the share alone"
        return next(share)


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
