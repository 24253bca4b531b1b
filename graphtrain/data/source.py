"""One interface over every kind of data: its length, an epoch from the start, and an epoch from the middle.

Indexed      a sequence of batches            its position is a number
Ordered      `graphtrain.Loader`              its position is a number: order and seeds follow from (seed, epoch)
Replayed     a DataLoader, any iterable       its position is the random state at `iter()` and a count: a resume
                                              draws the batches again and drops them
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, final

from torch.utils.data import DataLoader

from graphtrain.data.loader import Loader
from graphtrain.data.samplers import announce_epoch, generators_of
from graphtrain.data.workers import iterate
from graphtrain.errors import DataError
from graphtrain.state.random import capture_random, restore_random


class Source(ABC):
    """Data with a position."""

    @abstractmethod
    def length(self) -> int | None:
        """Batches in the epoch that would be opened now; None if the data does not say."""

    @abstractmethod
    def open(self, epoch: int) -> tuple[Iterator[Any], dict[str, Any]]:
        """Begin an epoch: its batches, and what `reopen` needs beside the number of batches drawn."""

    @abstractmethod
    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        """Go on in an epoch after `drawn` batches. May leave the random generators in any state."""


def source_of(data: Any, *, seed: int | None, saving: bool, say: Callable[[str], None]) -> Source:
    """The source that fits the data.

    Arguments:
        seed: the run's seed, for a `Loader` that has none of its own.
        saving: True if positions will be saved, so that data which cannot be reopened is refused.
        say: told what a resume of this data will cost.

    Raises:
        DataError: the data cannot be iterated, or only once.
    """
    if isinstance(data, Loader):
        return Ordered(data, seed or 0)
    if isinstance(data, list | tuple):
        return Indexed(data)
    if not isinstance(data, Iterable) and not hasattr(type(data), "__getitem__"):
        raise DataError(
            f"the data is a {type(data).__name__}, which cannot be iterated over",
            "give a graphtrain.Loader, a DataLoader, a list of batches, or any iterable of batches",
        )
    # Asked of iterators only: other data may count its epochs, or open a file, at every `iter()`.
    once = isinstance(data, Iterator) and iter(data) is data
    if once and saving:
        raise DataError(
            f"the data is a {type(data).__name__} that can be iterated over only once, so no resume could be exact",
            "give an object whose `__iter__` starts anew (say, a generator method), or run without a run directory",
        )
    if isinstance(data, DataLoader) and data.persistent_workers and saving:
        raise DataError(
            "a DataLoader with persistent_workers=True cannot be resumed exactly: its workers keep random states "
            "that nothing can restore",
            "use graphtrain.Loader, which takes the same keywords, or persistent_workers=False",
        )
    if isinstance(data, DataLoader) and saving:
        say(
            "train or validation data is a DataLoader: a resume inside an epoch draws that epoch's earlier batches "
            "again; graphtrain.Loader takes the same keywords and resumes at once"
        )
    return Replayed(data, once)


@final
class Indexed(Source):
    """A sequence of batches."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def length(self) -> int | None:
        return len(self._batches)

    def open(self, epoch: int) -> tuple[Iterator[Any], dict[str, Any]]:
        return iter(self._batches), {}

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        return itertools.islice(self._batches, drawn, None)


@final
class Ordered(Source):
    """A `Loader`: any batch of any epoch can be fetched as it was."""

    def __init__(self, loader: Loader, seed: int) -> None:
        self._loader, self._seed = loader, seed

    def length(self) -> int | None:
        return len(self._loader)

    def open(self, epoch: int) -> tuple[Iterator[Any], dict[str, Any]]:
        return self._loader.batches(epoch, seed=self._seed), {}

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        return self._loader.batches(epoch, start=drawn, seed=self._seed)


@final
class Replayed(Source):
    """Anything that can be iterated over again: the same random state at `iter()` gives the same batches.

    That holds where the order of an epoch is drawn when it begins, as torch's own samplers do. An order that is drawn
    bit by bit, from a generator that training draws from too, cannot be replayed; `Loader` can be given such a sampler.

    Arguments:
        once: True for data that cannot be iterated over again: it can be opened, and not reopened where it was begun.
    """

    def __init__(self, data: Any, once: bool = False) -> None:
        self._data, self._once = data, once

    def length(self) -> int | None:
        try:
            return len(self._data)
        except (TypeError, NotImplementedError):
            return None

    def open(self, epoch: int) -> tuple[Iterator[Any], dict[str, Any]]:
        announce_epoch(self._data, epoch)
        state = {"random": capture_random(), "generators": [one.get_state() for one in generators_of(self._data)]}
        return iterate(self._data), state | ({"once": True} if self._once else {})

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        if "random" not in state:
            raise DataError(
                f"the run is inside an epoch that was begun with data of another kind: where it stands, after {drawn} "
                f"batches, cannot be found in a {type(self._data).__name__}",
                "change the data at the end of an epoch, or give a list of batches or a graphtrain.Loader",
            )
        if self._once and "once" in state:
            raise DataError(
                f"the data is a {type(self._data).__name__} that can be iterated over only once, and the run is in the "
                "middle of it: what reads it cannot be set up anew without losing batches",
                "leave the node that fetches batches, and its data, as they are until the epoch has ended",
            )
        announce_epoch(self._data, epoch)
        restore_random(state["random"])
        for generator, saved in zip(generators_of(self._data), state["generators"], strict=False):
            generator.set_state(saved)
        iterator = iterate(self._data)
        for number in range(drawn):
            if next(iterator, self) is self:
                raise DataError(f"the data ended after {number} batches; it gave {drawn} before: it has changed")
        return iterator
