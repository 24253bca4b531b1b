"""Batches that a resume draws again: watched, and reported where that takes long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, final

from graphtrain.data.samplers import generators_of
from graphtrain.errors import DataError
from graphtrain.state.generators import same_state
from graphtrain.state.random import global_generators

# Batches that are drawn again are reported after so long, and then every so often.
_FIRST_REPORT_SECONDS = 2.0
_REPORT_SECONDS = 10.0


@final
class Redrawn(Iterator[Any]):
    """The batches of data in this process that are drawn again.

    Attributes:
        iterator: that of the data.
        is_same: False for a batch that need not be what it was: random numbers were drawn for it, and in the run
            training has drawn others before, unless the batch is the first.
    """

    def __init__(self, iterator: Iterator[Any], data: Any) -> None:
        self.iterator, self.is_same = iterator, True
        self._generators = [*global_generators(), *generators_of(data)]

    def __next__(self) -> Any:
        before = [generator.get_state() for generator in self._generators]
        try:
            return next(self.iterator)
        finally:
            self.is_same = all(map(same_state, before, [generator.get_state() for generator in self._generators]))


@final
class Progress:
    """Reports batches that are drawn again, if that takes long, with an estimate."""

    def __init__(self, epoch: int, batches: int, notify: Callable[[str], None]) -> None:
        self._epoch, self._data, self._notify = epoch, batches, notify
        self._begun = time.monotonic()
        self._next = _FIRST_REPORT_SECONDS

    def report(self, number: int) -> None:
        """Note that this many were drawn."""
        seconds = time.monotonic() - self._begun
        if seconds < self._next:
            return
        rest = seconds / number * (self._data - number)
        place = f"{number:,} of {self._data:,} batches of epoch {self._epoch + 1} are drawn again, {rest:.0f} s left"
        if self._next == _FIRST_REPORT_SECONDS:
            place += "; a graphtrain.Loader, or data with a state_dict, resumes at once"
        self._notify(place)
        self._next = seconds + _REPORT_SECONDS


def ended_early(what: str, number: int, drawn: int) -> DataError:
    """The error where data ends before a batch that it gave before."""
    return DataError(
        f"{what} ended after {number} batches, it gave {drawn} before: it has changed",
        "restore it; and `setup` must not draw batches from it, unless `__iter__` starts over",
    )
