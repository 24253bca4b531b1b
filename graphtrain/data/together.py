"""Several loaders: read one after the other, or together, where a batch is a mapping with one batch of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, final

from graphtrain.data import NOTHING
from graphtrain.data.loaders import RankLocal
from graphtrain.data.redrawing import Progress, Redrawn, ended_early
from graphtrain.data.samplers import length_of
from graphtrain.data.source import Opened, Source
from graphtrain.data.state import DataState
from graphtrain.errors import DataError
from graphtrain.kind.batch_limit import BatchLimit, combined_length

Combine = Literal["cycle", "shortest"]

_ENDED = object()


@final
class InTurn:
    """Loaders that are read one after the other, in the order of their mapping.

    Arguments:
        loaders: by name.
        read: makes the source of a loader.

    Attributes:
        positions: of those that keep their own, loaded from a checkpoint and not taken so far.
    """

    def __init__(self, loaders: Mapping[str, Any], read: Callable[[Any], Source]) -> None:
        self.loaders, self._read = loaders, read
        self._sources: dict[str, Source] = {}  # of those read so far: one may keep its own position
        self.positions: dict[str, dict[str, Any]] = {}

    def source(self, name: str) -> Source:
        """That of a loader, which is the same whenever it is asked for.

        Raises:
            DataError: there is none of that name, as where the run was saved with others.
        """
        if name not in self.loaders:
            raise DataError(
                f"the run was saved in the loader `{name}`, and now there are {', '.join(self.loaders)}",
                f"supply the loader `{name}` too, or resume from a checkpoint that was made elsewhere",
            )
        if name not in self._sources:
            self._sources[name] = self._read(self.loaders[name])
        return self._sources[name]

    def after(self, name: str) -> str:
        """The name of the loader that follows one; of the first after the last, and after none."""
        names = [*self.loaders]
        return names[(names.index(name) + 1) % len(names)] if name in names else names[0]

    def ends_with(self, name: str, batches: int) -> bool:
        """True if no other follows a loader that has ended after so many batches.

        Raises:
            DataError: it gave none.
        """
        if not batches:
            raise _without_batch(name)
        return [*self.loaders][-1] == name

    def length(self, limit: BatchLimit) -> int:
        """The batches of all of them; 0 where that is not known."""
        total = 0
        for loader in self.loaders.values():
            length = None if isinstance(loader, RankLocal) else length_of(loader)
            if length is None:
                return 0
            most = limit.of(length)
            total += length if most is None else min(most, length)
        return total

    def position(self, current: str) -> dict[str, Any]:
        """What those report that keep their own position, all but the one that is read."""
        reported = {name: source.position() for name, source in self._sources.items() if name != current}
        known = self.positions | {name: position for name, position in reported.items() if position}
        return {name: known[name] for name in (*self.loaders, *known) if name in known}  # in one order, for the digest


@final
class Together(Source):
    """Loaders that are read together.

    Each has its own position: what it was opened with, and where in the epoch that was. A loader that is read again in
    an epoch, as "cycle" does, is told of another epoch then, so that it shuffles in another order.

    They may share random numbers, or anything else: a resume repeats the calls of a run in their order.

    Arguments:
        loaders: by name.
        read: makes the source of a loader.
        combine: what happens where a loader ends before another: it is read again, or the epoch ends.
        data_state: of the data of the run.
        passes: how often each was opened before.
        notify: called with a line about batches that are drawn again, where that takes long. Default: nothing is.
    """

    def __init__(
        self,
        loaders: Mapping[str, Any],
        read: Callable[[Any], Source],
        combine: Combine,
        data_state: DataState,
        passes: Mapping[str, int] = MappingProxyType({}),
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.loaders, self.combine, self._data_state, self._notify = loaders, combine, data_state, notify
        self.sources = {name: read(loader) for name, loader in loaders.items()}
        self.replays = any(source.replays for source in self.sources.values())
        self.passes = {name: passes.get(name, 0) for name in loaders}

    def open(self, epoch: int) -> Opened:
        state: dict[str, Any] = {"loaders": {}}
        opened = {name: self.open_loader(name, 0, state) for name in self.sources}
        iterator = _Batches(self, state, {name: each.batches for name, each in opened.items()})
        return Opened(iterator, combined_length([each.length for each in opened.values()], self.combine), state)

    def open_loader(self, name: str, first: int, state: dict[str, Any]) -> Opened:
        """Open a loader before the batch of the epoch with this number."""
        held = self._data_state.capture(self.loaders[name])
        opened = self.sources[name].open(self.passes[name])
        begun = {"first": first, "pass": self.passes[name], "state": opened.state}
        if held:
            begun["data"] = held
        former = state["loaders"].get(name, {"passes": []})["passes"]
        state["loaders"][name] = {"passes": [*former[:1], begun]}
        self.passes[name] += 1
        return opened

    def reopen_loader(self, name: str, begun: dict[str, Any], taken: int, again: int = 0) -> Iterator[Any]:
        """Open a loader again as in a pass, after so many batches of that; `again` is as for `reopen`."""
        self._data_state.restore(self.loaders[name], begun.get("data", {}))
        self.passes[name] = begun["pass"] + 1
        return self.sources[name].reopen(begun["pass"], taken, begun["state"], again)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        if "loaders" not in state or state["loaders"].keys() != self.sources.keys():
            saved = ", ".join(state.get("loaders", {})) or "other data"
            raise DataError(
                f"the run is inside an epoch of {saved}, and now there are the loaders {', '.join(self.sources)}",
                "change the loaders at the end of an epoch",
            )
        iterators, given = self._drawn_away(epoch, drawn, state["loaders"])
        self.redrawn = [given] if again == 1 and NOTHING not in given.values() else ()
        return _Batches(self, state, iterators, drawn)

    def _drawn_away(
        self, epoch: int, drawn: int, of_loaders: Mapping[str, Any]
    ) -> tuple[dict[str, Iterator[Any]], dict[str, Any]]:
        """The iterators of all loaders before a batch of the epoch, and the batch before it.

        Those that are replayed begin together and give their first batches, each also if it has begun again since: then
        the last of its passes follows, where that was.
        """
        iterators, last = {}, {name: of_loader["passes"][-1] for name, of_loader in of_loaders.items()}
        given: dict[str, Any] = dict.fromkeys(self.sources, NOTHING)
        for name, source in self.sources.items():
            begun = of_loaders[name]["passes"][0] if source.replays else last[name]
            taken = 0 if source.replays else drawn - begun["first"]
            iterators[name] = self.reopen_loader(name, begun, taken, int(source.redraws and taken > 0))
            if source.redrawn:
                given[name] = source.redrawn[0]
        replayed = [name for name, source in self.sources.items() if source.replays]
        progress = Progress(epoch, drawn, self._notify)
        for number in range(drawn if replayed else 0):
            # One that has ended begins again after the others have given their batch.
            for name in sorted(replayed, key=lambda name: number == last[name]["first"] > 0):
                first = last[name]["first"]
                if number == first > 0:
                    iterators[name] = self.reopen_loader(name, last[name], 0)
                if 0 < number < first:
                    continue
                is_last, iterator = number == drawn - 1, iterators[name]
                watched: Any = Redrawn(iterator, self.loaders[name]) if is_last else iterator
                part = next(watched, _ENDED)
                if part is _ENDED:
                    raise ended_early(f"the loader `{name}`", max(number - first, 0), drawn - first)
                if is_last:
                    given[name] = part if watched.is_same or self.sources[name].redraws or not number else NOTHING
            progress.report(number + 1)
        return iterators, given

    def release(self, batches: Iterator[Any]) -> bool:
        if not isinstance(batches, _Batches):
            return False
        released = [self.sources[name].release(iterator) for name, iterator in batches.iterators.items()]
        return any(released)

    def position(self) -> dict[str, Any]:
        return {"passes": dict(self.passes)}

    def load_position(self, position: dict[str, Any], *, inside: bool) -> None:
        if not inside:
            saved = position.get("passes", {})
            self.passes.update((name, saved[name]) for name in self.passes if name in saved)


@final
class _Batches:
    """The batches of an epoch.

    Arguments:
        together: the loaders.
        state: of the epoch.
        iterators: of every loader.
        number: the batches of the epoch so far.
    """

    def __init__(
        self,
        together: Together,
        state: dict[str, Any],
        iterators: dict[str, Iterator[Any]],
        number: int = 0,
    ) -> None:
        self._together, self._state, self.iterators, self.number = together, state, iterators, number

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> dict[str, Any]:
        batch = {name: next(iterator, _ENDED) for name, iterator in self.iterators.items()}
        ended = [name for name, part in batch.items() if part is _ENDED]
        if self.number == 0 and ended:
            raise _without_batch(ended[0])
        combine, states = self._together.combine, self._state["loaders"]
        # All are over once each was read to its end in this epoch, perhaps in a pass before this one.
        if ended and all(
            combine == "shortest" or name in ended or states[name]["passes"][-1]["first"] > 0 for name in self.iterators
        ):
            raise StopIteration
        for name in ended:
            batch[name] = self._again(name)
        self.number += 1
        return batch

    def _again(self, name: str) -> Any:
        self.iterators[name] = self._together.open_loader(name, self.number, self._state).batches
        part = next(self.iterators[name], _ENDED)
        if part is _ENDED:
            raise DataError(
                f"the loader `{name}` has ended, and does not start over",
                'give it an `__iter__` that starts over; or set next_batch.combine = "shortest"',
            )
        return part


def _without_batch(name: str) -> DataError:
    return DataError(
        f"the loader `{name}` gave no batch: it is empty, or was iterated over before and does not start over",
        "leave it out of the mapping, or give it data",
    )
