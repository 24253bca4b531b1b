"""Sources around another source: data as it was when an epoch was opened, limits, numbers that are of no rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, final

from graphtrain.data import NOTHING
from graphtrain.data.loader import derived_seed
from graphtrain.data.samplers import generators_of, samples_per_batch
from graphtrain.data.source import Opened, Source
from graphtrain.data.state import DataState
from graphtrain.errors import DataError
from graphtrain.kind.batch_limit import BatchLimit
from graphtrain.state.generators import HOST, AnyGenerator, RandomAside, seed_all
from graphtrain.storage.state_files import state_digest


class Wrapped(Source):
    """A source around another one, which answers what is not asked of this one."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.replays, self.redraws = source.replays, source.redraws

    def open(self, epoch: int, indices: Any = None) -> Opened:
        return self.source.open(epoch, indices)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        return self.source.reopen(epoch, drawn, state)

    def release(self) -> bool:
        return self.source.release()

    def position(self) -> dict[str, Any]:
        return self.source.position()

    def load_position(self, position: dict[str, Any]) -> None:
        self.source.load_position(position)


@final
class AsOpened(Wrapped):
    """A source whose data is reopened as it was, beside its position, when the epoch was opened."""

    def __init__(self, source: Source, data: Any, state: DataState) -> None:
        super().__init__(source)
        self._data, self._state = data, state
        self._captured: Mapping[str, Any] = {}  # when the epoch was opened
        self._digest = ""
        self._opened: dict[str, Any] = {}  # the state of the epoch

    def open(self, epoch: int, indices: Any = None) -> Opened:
        self._capture()  # before the data is told the epoch
        opened = self.source.open(epoch, indices)
        opened.state["batch_size"] = samples_per_batch(self._data)
        self._opened = opened.state
        return opened

    def _capture(self) -> None:
        self._captured = self._state.opened[self._state.name(self._data)] = self._state.capture(self._data)
        self._digest = state_digest({"data": self._captured}) if self._captured else ""

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        before, now = state.get("batch_size"), samples_per_batch(self._data)
        if before and now and before != now:
            raise DataError(
                f"{self._state.name(self._data)} has a batch size of {now}, and the run is inside an epoch that was "
                f"begun with {before}",
                f"end this epoch with batches of {before}; or resume from a checkpoint between two epochs",
            )
        if state is self._opened:
            self._state.restore(self._data, self._captured)
        else:
            self._state.restore(self._data, state.get("data", {}))
            self._capture()
        self._opened = state
        return self.source.reopen(epoch, drawn, state)

    def position(self) -> dict[str, Any]:
        if self._captured:  # what has not changed since, such as a cache that is full, is saved once
            is_same = self._state.digest(self._data) == self._digest
            self._opened["data"] = None if is_same else self._captured
        return self.source.position()


@final
class Limited(Wrapped):
    """The first batches of each epoch; a limit that is changed is in force from the next one on."""

    def __init__(self, source: Source, limit: BatchLimit) -> None:
        super().__init__(source)
        self._limit = limit

    def open(self, epoch: int, indices: Any = None) -> Opened:
        opened = self.source.open(epoch, indices)
        if (most := self._limit.of(opened.length)) is None:
            return opened
        opened.state["limit"] = most
        length = None if opened.length is None else min(opened.length, most)
        return opened._replace(batches=itertools.islice(opened.batches, most), length=length)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        batches = self.source.reopen(epoch, drawn, state)
        return itertools.islice(batches, state["limit"] - drawn) if "limit" in state else batches


@final
class Common(Wrapped):
    """A source under random numbers that follow from the seed of the run and the epoch, and are of no rank.

    Global generators differ between ranks, for dropout, and those that data holds may. An epoch that was begun so is
    continued so, by one process too, which opens its epochs otherwise: there it is not shared.
    """

    def __init__(self, source: Source, data: Any, seed: int, *, is_shared: bool) -> None:
        super().__init__(source)
        self._data, self._seed, self._is_shared = data, seed, is_shared
        self._states: list[Any] = []  # of the generators, for the next batch; none in an epoch of one process

    def open(self, epoch: int, indices: Any = None) -> Opened:
        self._states = []
        if not self._is_shared:
            return self.source.open(epoch, indices)
        generators = self._generators()
        with RandomAside(generators):
            seed_all(derived_seed(self._seed, epoch), generators)
            opened = self.source.open(epoch, indices)
            self._states = [generator.get_state() for generator in generators]
        opened.state["common"] = True
        return opened._replace(batches=self._drawn(opened.batches, generators))

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        loaded, self._states = self._states, []
        if not (self._is_shared or "common" in state):
            return self.source.reopen(epoch, drawn, state)
        state["common"] = True
        generators = self._generators()
        with RandomAside(generators):
            # Data that keeps its position does not say what it has drawn; what is replayed is seeded as it was.
            seed_all(derived_seed(self._seed, epoch, drawn), generators)
            batches = self.source.reopen(epoch, drawn, state)
            for generator, saved in zip(generators, loaded, strict=False):
                generator.set_state(saved)
            self._states = [generator.get_state() for generator in generators]
        return self._drawn(batches, generators)

    def _generators(self) -> list[AnyGenerator]:
        return [*generators_of(self._data), *HOST.values()]

    def _drawn(self, batches: Iterator[Any], generators: list[AnyGenerator]) -> Iterator[Any]:
        while True:
            with RandomAside(generators):
                for generator, state in zip(generators, self._states, strict=False):
                    generator.set_state(state)
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
