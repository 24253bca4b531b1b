"""Sources that wrap another: with the same batches in every epoch, or with random numbers that are of no rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from torch.utils.data import DataLoader, SequentialSampler

from graphtrain.data.loader import derived_seed
from graphtrain.data.samplers import generators_of
from graphtrain.data.source import Opened, Source
from graphtrain.errors import DataError
from graphtrain.state.generators import HOST, AnyGenerator
from graphtrain.state.random import RandomAside, seed_all

if TYPE_CHECKING:
    import torch


class Wrapped(Source):
    """A source around another one, which answers what is not asked of this one.

    Arguments:
        source: the other.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.replays, self.redraws = source.replays, source.redraws

    def select(self, indices: Any) -> torch.Tensor | None:
        return self._source.select(indices)

    def release(self, batches: Iterator[Any]) -> bool:
        return self._source.release(batches)

    def position(self) -> dict[str, Any]:
        return self._source.position()

    def load_position(self, position: dict[str, Any], *, inside: bool) -> None:
        self._source.load_position(position, inside=inside)

    def sample(self) -> dict[str, Any]:
        return self._source.sample()

    def doubts(self, epoch: int, end: str, sample: Mapping[str, Any]) -> list[str]:
        return self._source.doubts(epoch, end, sample)


@final
class Overfit(Wrapped):
    """A source of which every epoch is the first.

    Arguments:
        source: that of the data.
        loaders: the data, or the loaders that are read together.
        batches: as many of an epoch are read.

    Raises:
        DataError: a DataLoader gives other batches in every epoch.
    """

    def __init__(self, source: Source, loaders: Iterable[Any], batches: int) -> None:
        super().__init__(source)
        for loader in loaders:
            if isinstance(loader, DataLoader) and not isinstance(loader.sampler, SequentialSampler):
                raise DataError(
                    f"next_batch.overfit = {batches}: the data is a {type(loader).__name__} with a "
                    f"{type(loader.sampler).__name__}, which gives other batches in every epoch",
                    "leave shuffle=True out; or use graphtrain.Loader, which gives those of its first epoch again",
                )

    def open(self, epoch: int) -> Opened:
        return self._source.open(0)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        iterator = self._source.reopen(0, drawn, state, again)
        self.redrawn = self._source.redrawn
        return iterator


@final
class CommonBatches:
    """An iterator with random numbers of its own, from where the generators are when it is made.

    Arguments:
        iterator: that of the data.
        generators: those that it may draw from, which have other numbers for whoever else draws.
        state: of the epoch, in which it is noted that it has such numbers, once there is a batch.

    Attributes:
        iterator: the same.
        states: of the generators, for the next item.
    """

    def __init__(self, iterator: Iterator[Any], generators: Sequence[AnyGenerator], state: dict[str, Any]) -> None:
        self.iterator, self._generators, self._state = iterator, generators, state
        self.states = [generator.get_state() for generator in generators]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._state["common"] = True
        with RandomAside(self._generators):
            for generator, state in zip(self._generators, self.states, strict=True):
                generator.set_state(state)
            try:
                return next(self.iterator)
            finally:
                self.states = [generator.get_state() for generator in self._generators]


@final
class Common(Wrapped):
    """A source under random numbers that follow from the seed and the epoch, and are of no rank.

    Global generators differ between ranks, for dropout, and those that data holds may. An epoch that was begun so is
    continued so, by one process too, which opens its epochs otherwise.

    Arguments:
        source: that of the data.
        data: the data, which may hold generators.
        seed: of the run.
        is_shared: False in one process. Default: True.
    """

    def __init__(self, source: Source, data: Any, seed: int, *, is_shared: bool = True) -> None:
        super().__init__(source)
        self._data, self._seed, self._is_shared = data, seed, is_shared
        self._batches: CommonBatches | None = None
        self._states: list[Any] = []  # loaded from a checkpoint, until the epoch is opened again

    def _generators(self) -> list[AnyGenerator]:
        return [*HOST.values(), *generators_of(self._data)]

    def open(self, epoch: int) -> Opened:
        self._batches, self._states = None, []
        if not self._is_shared:
            return self._source.open(epoch)
        generators = self._generators()
        with RandomAside(generators):
            seed_all(derived_seed(self._seed, epoch), generators)
            opened = self._source.open(epoch)
            self._batches = CommonBatches(opened.batches, generators, opened.state)
        return opened._replace(batches=self._batches)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        generators = self._generators()
        with RandomAside(generators):
            # Data that keeps its position does not say what it has drawn; what is replayed is seeded as it was.
            seed_all(derived_seed(self._seed, epoch, drawn), generators)
            iterator = self._source.reopen(epoch, drawn, state, again)
            self.redrawn = self._source.redrawn
            for generator, saved in zip(generators, self._states, strict=False):
                generator.set_state(saved)
            self._batches = CommonBatches(iterator, generators, state)
        return self._batches

    def release(self, batches: Iterator[Any]) -> bool:
        return super().release(batches.iterator if isinstance(batches, CommonBatches) else batches)

    def position(self) -> dict[str, Any]:
        position = super().position()
        if position and self._batches is not None and not self.replays:
            position["common"] = list(self._batches.states)
        return position

    def load_position(self, position: dict[str, Any], *, inside: bool) -> None:
        self._states = list(position.pop("common", ())) if inside else []
        super().load_position(position, inside=inside)
