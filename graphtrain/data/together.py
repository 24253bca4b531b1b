"""Several loaders that are read together: a batch is a mapping with one batch of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

from graphtrain.data.batch import NOTHING
from graphtrain.data.source import Opened, Source, position_unknown
from graphtrain.errors import DataError


@final
class Together(Source):
    """Several sources read in step: an epoch ends with the longest, and the shorter ones start over until then.

    Each has its own position: the state with which it was opened, and where in the epoch that was. A loader that starts
    over is opened with a new epoch number, so that it shuffles in another order.

    Arguments:
        data, sources: the loaders and their sources, by name.
    """

    def __init__(self, data: Any, sources: Mapping[str, Source]) -> None:
        self.data, self._sources = data, sources
        self.replays = any(source.replays for source in sources.values())
        self._passes = dict.fromkeys(sources, 0)  # how often each was opened so far

    def open(self, epoch: int, indices: Any = None) -> Opened:
        if not epoch:
            self._passes = dict.fromkeys(self._sources, 0)
        state: dict[str, Any] = {"loaders": {}}
        opened = {name: self._open(name, 0, state) for name in self._sources}
        lengths = [each.length for each in opened.values() if each.length is not None]
        length = max(lengths) if len(lengths) == len(opened) else None
        return Opened(self._batches(state, {name: each.batches for name, each in opened.items()}, 0), length, state)

    def _open(self, name: str, first: int, state: dict[str, Any]) -> Opened:
        """Begin a pass through a loader before the batch of the epoch with this number."""
        opened = self._sources[name].open(self._passes[name])
        state["loaders"][name] = {"first": first, "pass": self._passes[name], "state": opened.state}
        state["redrawn"] = first  # what came before is not drawn again by a resume
        self._passes[name] += 1
        return opened

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        passes: dict[str, Any] = state.get("loaders", {})
        if passes.keys() != self._sources.keys():
            raise position_unknown(self.data)
        iterators = {}
        for name, begun in passes.items():
            self._passes[name] = begun["pass"] + 1
            iterators[name] = self._sources[name].reopen(begun["pass"], drawn - begun["first"], begun["state"])
        return self._batches(state, iterators, drawn)

    def _batches(self, state: dict[str, Any], iterators: dict[str, Iterator[Any]], number: int) -> Iterator[Any]:
        """The batches of an epoch from this number on."""
        loaders = state["loaders"]
        while True:
            batch = {name: next(iterator, NOTHING) for name, iterator in iterators.items()}
            ended = [name for name, part in batch.items() if part is NOTHING]
            if ended and not number:
                raise empty_loader(ended[0])
            # The epoch is over once each was read to its end in it, perhaps in an earlier pass.
            if ended and all(name in ended or loaders[name]["first"] > 0 for name in iterators):
                return
            for name in ended:
                iterators[name] = self._open(name, number, state).batches
                batch[name] = next(iterators[name], NOTHING)
                if batch[name] is NOTHING:
                    raise empty_loader(name)
            number += 1
            yield batch

    def position(self) -> dict[str, Any]:
        for source in self._sources.values():
            source.position()  # it may add what it needs to the state of the epoch
        return {"passes": dict(self._passes)}

    def load_position(self, position: dict[str, Any]) -> str:
        self._passes |= {name: count for name, count in position.get("passes", {}).items() if name in self._passes}
        return ""


def empty_loader(name: str) -> DataError:
    """The error for one of several loaders that gave no batch at all."""
    return DataError(
        f"the loader `{name}` gave no batch: it is empty, or was iterated over before and does not start over",
        "leave it out of the mapping, or give it data and an `__iter__` that starts over",
    )
