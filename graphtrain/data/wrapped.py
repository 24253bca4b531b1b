"""Sources around another source: data as it was when an epoch was opened, random numbers that are of no rank."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from graphtrain.data import NOTHING
from graphtrain.data.loader import derived_seed
from graphtrain.data.samplers import generators_of, samples_per_batch, set_states
from graphtrain.data.source import Opened, Source
from graphtrain.data.state import DataState
from graphtrain.errors import DataError
from graphtrain.state.generators import HOST, AnyGenerator, RandomAside, seed_all
from graphtrain.storage.state_files import state_digest


@final
class AsOpened(Source):
    """A source whose data is reopened as it was, beside its position, when the epoch was opened."""

    def __init__(self, source: Source, data: Any, state: DataState) -> None:
        self.source, self.replays, self.redraws = source, source.replays, source.redraws
        self._data, self._state = data, state
        self._changed: Mapping[str, Any] = {}  # when the epoch was opened
        self._digest = ""
        self._opened: dict[str, Any] = {}  # the state of the epoch

    def open(self, epoch: int, indices: Any = None) -> Opened:
        self._note()  # before the data is told the epoch
        opened = self.source.open(epoch, indices)
        opened.state["batch_size"] = samples_per_batch(self._data)
        self._opened = opened.state
        return opened

    def _note(self) -> None:
        self._changed = copy.deepcopy(self._state.changed(self._data))
        self._digest = state_digest({"data": self._changed}) if self._changed else ""

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        before, now = state.get("batch_size"), samples_per_batch(self._data)
        if before and now and before != now:
            raise DataError(
                f"{self._state.name(self._data)} has a batch size of {now}, and the run is inside an epoch that was "
                f"begun with {before}",
                f"end this epoch with batches of {before}; or resume from a checkpoint between two epochs",
            )
        if state is self._opened:
            self._state.restore(self._data, self._changed)
        else:
            self._state.restore(self._data, state.get("data", {}))
            self._note()
        self._opened = state
        return self.source.reopen(epoch, drawn, state)

    def position(self) -> dict[str, Any]:
        if self._changed:  # what has not changed since, such as a cache that is full, is saved once
            self._opened["data"] = None if self._state.digest(self._data) == self._digest else self._changed
        return self.source.position()

    def load_position(self, position: dict[str, Any]) -> None:
        self.source.load_position(position)


@final
class Common(Source):
    """A source under random numbers that follow from the seed of the run and the epoch, and are of no rank.

    Global generators differ between ranks, for dropout, and those that data holds may. An epoch that was begun so is
    continued so, by one process too, which opens its epochs otherwise: there it is not shared.
    """

    def __init__(self, source: Source, data: Any, seed: int, *, is_shared: bool) -> None:
        self.source, self.replays, self.redraws = source, source.replays, source.redraws
        self._data, self._seed, self._is_shared = data, seed, is_shared
        self._states: list[Any] = []  # of the generators, for the next batch; none in an epoch of one process

    def open(self, epoch: int, indices: Any = None) -> Opened:
        self._states = []
        begin = functools.partial(self.source.open, epoch, indices)
        if not self._is_shared:
            return begin()
        opened: Opened = self._begun(begin, epoch)
        opened.state["common"] = True
        return opened._replace(batches=self._drawn(opened.batches))

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        loaded, self._states = self._states, []
        begin = functools.partial(self.source.reopen, epoch, drawn, state)
        if not (self._is_shared or "common" in state):
            return begin()
        state["common"] = True
        # Data that keeps its position does not say what it has drawn; what is replayed is seeded as it was.
        return self._drawn(self._begun(begin, epoch, drawn, then=loaded))

    def _begun(self, begin: Callable[[], Any], *numbers: int, then: Sequence[Any] = ()) -> Any:
        """What is begun with a seed from these numbers, `then` with generators in these states."""
        generators = self._generators()
        with RandomAside(generators):
            seed_all(derived_seed(self._seed, *numbers), generators)
            begun = begin()
            set_states(generators, then)
            self._states = [generator.get_state() for generator in generators]
        return begun

    def _generators(self) -> list[AnyGenerator]:
        return [*generators_of(self._data), *HOST.values()]

    def _drawn(self, batches: Iterator[Any]) -> Iterator[Any]:
        generators = self._generators()
        while True:
            with RandomAside(generators):
                set_states(generators, self._states)
                batch = next(batches, NOTHING)
                self._states = [generator.get_state() for generator in generators]
            if batch is NOTHING:
                return
            yield batch

    def position(self) -> dict[str, Any]:
        position = self.source.position()
        return position | {"common": list(self._states)} if position and self._states and not self.replays else position

    def load_position(self, position: dict[str, Any]) -> None:
        self._states = list(position.get("common", ()))
        self.source.load_position(position)
