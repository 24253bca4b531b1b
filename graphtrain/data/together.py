"""Several loaders that are read together: a batch is a mapping with one batch of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, final

from graphtrain.data import NOTHING
from graphtrain.data.source import Opened, Source, ended_early
from graphtrain.errors import DataError
from graphtrain.kind.batch_limit import combined_length

Combine = Literal["cycle", "shortest"]


@final
class Together(Source):
    """A source over several.

    Each has its own position: what it was opened with, and where in the epoch that was. A loader that is read again in
    an epoch, as "cycle" does, is told of another epoch then, so that it shuffles in another order.

    They may share random numbers, or anything else: a resume repeats the calls of a run in their order.

    Arguments:
        sources: by the name of the loader.
        combine: what happens where a loader ends before another: it is read again, or the epoch ends.
    """

    def __init__(self, sources: Mapping[str, Source], combine: Combine) -> None:
        self.data, self._sources, self._combine = None, sources, combine
        self.replays = any(source.replays for source in sources.values())
        self._passes = dict.fromkeys(sources, 0)  # how often each was opened before

    def open(self, epoch: int, indices: Any = None) -> Opened:
        if indices is not None:
            raise not_of_several(self._sources)
        if not epoch:
            self._passes = dict.fromkeys(self._sources, 0)
        state: dict[str, Any] = {"loaders": {}}
        opened = {name: self._open(name, 0, state) for name in self._sources}
        batches = self._batches(state, {name: each.batches for name, each in opened.items()}, 0)
        return Opened(batches, combined_length([each.length for each in opened.values()], self._combine), state)

    def _open(self, name: str, first: int, state: dict[str, Any]) -> Opened:
        """Begin a pass through a loader before the batch of the epoch with this number."""
        opened = self._sources[name].open(self._passes[name])
        begun = {"first": first, "pass": self._passes[name], "state": opened.state}
        state["loaders"][name] = [*state["loaders"].get(name, [])[:1], begun]  # the first of the epoch, and the last
        state["redrawn"] = first  # what came before is not drawn again by a resume
        self._passes[name] += 1
        return opened

    def _reopen(self, name: str, begun: dict[str, Any], taken: int) -> Iterator[Any]:
        self._passes[name] = begun["pass"] + 1
        batches: Iterator[Any] = self._sources[name].reopen(begun["pass"], taken, begun["state"])
        return batches

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        """Loaders that are replayed begin together and give their first batches, each also if it has begun again since.

        Then the last of its passes follows, where that was.
        """
        passes: dict[str, list[Any]] = state.get("loaders", {})
        if passes.keys() != self._sources.keys():
            raise DataError(
                f"the run is inside an epoch of {', '.join(passes) or 'other data'}, and now there are the loaders "
                f"{', '.join(self._sources)}",
                "change the loaders at the end of an epoch",
            )
        last = {name: of_loader[-1] for name, of_loader in passes.items()}
        iterators = {
            name: self._reopen(name, passes[name][0], 0)
            if source.replays
            else self._reopen(name, last[name], drawn - last[name]["first"])
            for name, source in self._sources.items()
        }
        replayed = [name for name, source in self._sources.items() if source.replays]
        for number in range(drawn if replayed else 0):
            # One that has ended begins again after the others have given their batch.
            for name in sorted(replayed, key=lambda name: number == last[name]["first"] > 0):
                first = last[name]["first"]
                if number == first > 0:
                    iterators[name] = self._reopen(name, last[name], 0)
                if not 0 < number < first and next(iterators[name], NOTHING) is NOTHING:
                    raise ended_early(f"the loader `{name}`", max(number - first, 0), drawn - first)
        iterators |= {name: iter(()) for name in replayed if last[name]["first"] == drawn > 0}
        return self._batches(state, iterators, drawn)

    def _batches(self, state: dict[str, Any], iterators: dict[str, Iterator[Any]], number: int) -> Iterator[Any]:
        """The batches of an epoch from this number on."""
        loaders = state["loaders"]
        while True:
            batch = {name: next(iterator, NOTHING) for name, iterator in iterators.items()}
            ended = [name for name, part in batch.items() if part is NOTHING]
            if ended and not number:
                raise without_batch(ended[0])
            # All are over once each was read to its end in this epoch, perhaps in a pass before this one.
            is_over = all(name in ended or loaders[name][-1]["first"] > 0 for name in iterators)
            if ended and (self._combine == "shortest" or is_over):
                return
            for name in ended:
                begun = loaders[name][-1]
                is_known = begun["first"] == number  # a resume has come to it
                iterators[name] = self._reopen(name, begun, 0) if is_known else self._open(name, number, state).batches
                batch[name] = next(iterators[name], NOTHING)
                if batch[name] is NOTHING:
                    raise DataError(
                        f"the loader `{name}` has ended, and does not start over",
                        'give it an `__iter__` that starts over; or set next_batch.combine = "shortest"',
                    )
            number += 1
            yield batch

    def position(self) -> dict[str, Any]:
        for source in self._sources.values():
            source.position()  # which may note what it needs in the state of the epoch
        return {"passes": dict(self._passes)}

    def load_position(self, position: dict[str, Any]) -> None:
        self._passes |= {name: count for name, count in position.get("passes", {}).items() if name in self._passes}


def without_batch(name: str) -> DataError:
    """The error where one of several loaders has no batch at all."""
    return DataError(
        f"the loader `{name}` gave no batch: it is empty, or was iterated over before and does not start over",
        "leave it out of the mapping, or give it data",
    )


def not_of_several(loaders: Iterable[str]) -> DataError:
    """The error where indices are given for several loaders."""
    return DataError(
        f"`indices` selects samples of one data set, and there are the loaders {', '.join(loaders)}",
        "select the samples of each in its loader, as by a Subset",
    )
