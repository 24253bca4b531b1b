"""One interface over every kind of data: its length, an epoch from the start, and an epoch from the middle.

Indexed      a sequence of batches            its position is a number
Ordered      `graphtrain.Loader`              its position is a number: order and seeds follow from (seed, epoch)
Stateful     what has `state_dict`            its position is its own, asked for when the run is captured
Replayed     a DataLoader, any iterable       its position is the random state at `iter()` and a count: a resume
                                              draws the batches again and drops them. What draws its order bit by bit
                                              does so from a `Stream` of its own
"""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, final

from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from graphtrain.data.loader import Loader
from graphtrain.data.samplers import announce_epoch, draws_at_once, generators_of, of_torchdata
from graphtrain.data.stream import Stream
from graphtrain.data.workers import iterate
from graphtrain.errors import DataError
from graphtrain.state.generators import HOST
from graphtrain.state.random import RandomAside, capture_random, restore_random

Resume = Literal["auto", "replay", "state"]


class Opened(NamedTuple):
    """An epoch that begins: its batches, how many the data says there will be, and what `reopen` needs."""

    batches: Iterator[Any]
    length: int | None
    state: dict[str, Any]


class Source(ABC):
    """Data with a position."""

    redraws = False
    """True if `reopen` draws the very batches again that were drawn, to the last bit."""

    @abstractmethod
    def open(self, epoch: int) -> Opened:
        """Begin an epoch. Its length is asked for once the data knows the epoch, and before its `iter()`."""

    @abstractmethod
    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        """Go on in an epoch after `drawn` batches. May leave the random generators in any state.

        What is kept of the epoch's course beside `drawn` is added to `state`, as `open` does to the one it returns.
        """

    def position(self) -> dict[str, Any]:
        """The position that the data keeps itself; empty where it keeps none."""
        return {}

    def take_up(self, position: dict[str, Any], *, inside: bool) -> None:  # noqa: B027 - most data has none
        """Take up a position of the data's own: before `reopen` where it is `inside` an epoch, else before `open`."""


def source_of(
    data: Any,
    *,
    seed: int | None,
    saving: bool,
    notify: Callable[[str], None],
    resume: Resume = "auto",
    limit: int | None = None,
) -> Source:
    """The source that fits the data.

    Arguments:
        seed: the run's seed, for a `Loader` that has none of its own.
        saving: True if positions will be saved, so that data which cannot be reopened is refused.
        notify: told what a resume of this data will cost.
        resume: of data with a `state_dict`: "state" takes it, "replay" does not. Default: the state where it is exact.
        limit: the most batches in an epoch. Default: all.

    Raises:
        DataError: the data cannot be iterated over, or only once, or cannot be gone on with as `resume` says.
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
    keeps_state = _has_state(data)
    if resume == "state" and not keeps_state:
        raise DataError(
            f'next_batch.resume = "state": the data is a {type(data).__name__}, which has no state_dict and '
            "load_state_dict",
            'leave it at "auto"',
        )
    if keeps_state and (resume == "state" or (resume == "auto" and _restores_itself(data, limit))):
        if limit is not None and saving:
            raise DataError(
                f"next_batch.limit = {limit}: the data is a {type(data).__name__} that keeps its own position, and "
                "where that is after an epoch cut short is not defined",
                'end the epochs in the data; or next_batch.resume = "replay", if its `__iter__` begins an epoch anew',
            )
        return Stateful(data)
    # Asked of iterators only: other data may count its epochs, or open a file, at every `iter()`.
    once = isinstance(data, Iterator) and iter(data) is data
    if once and saving:
        raise DataError(
            f"the data is a {type(data).__name__} that can be iterated over only once, so no resume could be exact",
            "give an object whose `__iter__` starts again, such as a generator method, or run without a run directory",
        )
    if isinstance(data, DataLoader) and saving:
        if data.persistent_workers:
            raise DataError(
                "a DataLoader with persistent_workers=True cannot be resumed exactly: its workers keep random states "
                "that nothing can restore",
                "use graphtrain.Loader, which takes the same keywords, or persistent_workers=False",
            )
        notify(_price(data, keeps_state and resume == "auto" and limit is None))
    return Replayed(data, once)


def _price(loader: DataLoader[Any], keeps_state: bool) -> str:
    """What a resume by replay costs, and the way out."""
    said = (
        f"train or validation data is a {type(loader).__name__}: a resume inside an epoch draws that epoch's earlier "
        "batches again"
    )
    if keeps_state:
        return (
            f'{said}, since its state_dict does not bring back all random numbers; next_batch.resume = "state" resumes '
            "at once and not exactly, graphtrain.Loader both at once and exactly"
        )
    return f"{said}; graphtrain.Loader takes the same keywords and resumes at once"


def _has_state(data: Any) -> bool:
    return all(callable(getattr(data, name, None)) for name in ("state_dict", "load_state_dict", "__iter__"))


def _restores_itself(data: Any, limit: int | None) -> bool:
    """True if the state of data that has one is all that its batches depend on, the global generators aside.

    So it is taken to be, but for torchdata's `StatefulDataLoader`: it does not restore the random numbers of its
    workers, and skips what has no state by drawing it anew from whatever the generators hold by then.
    """
    if not (isinstance(data, DataLoader) and any(of_torchdata(one) for one in type(data).__mro__)):
        return True
    if data.num_workers or limit is not None:
        return False
    if isinstance(data.dataset, IterableDataset):
        return _has_state(data.dataset)
    sampler = data.sampler if data.batch_sampler is None else getattr(data.batch_sampler, "sampler", None)
    standard = data.batch_sampler is None or of_torchdata(type(data.batch_sampler))
    return standard and (of_torchdata(type(sampler)) or type(sampler) is SequentialSampler)


@final
class Indexed(Source):
    """A sequence of batches."""

    redraws = True

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def open(self, epoch: int) -> Opened:
        return Opened(iter(self._batches), len(self._batches), {})

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        return itertools.islice(self._batches, drawn, None)


@final
class Ordered(Source):
    """A `Loader`: any batch of any epoch can be fetched as it was."""

    redraws = True

    def __init__(self, loader: Loader, seed: int) -> None:
        self._loader, self._seed = loader, seed

    def open(self, epoch: int) -> Opened:
        batches = self._loader.batches(epoch, seed=self._seed)
        return Opened(batches, len(self._loader), {})

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        return self._loader.batches(epoch, start=drawn, seed=self._seed)


@final
class Stateful(Source):
    """Data that keeps its own position: after `load_state_dict`, the next `iter()` goes on from there.

    That is torchdata's convention. The state is asked for when the run is captured, not at every batch.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        self._begun = False
        self._taken_up: dict[str, Any] = {}  # the position to report until the data has moved on from it

    def open(self, epoch: int) -> Opened:
        announce_epoch(self._data, epoch)
        length = _length(self._data)
        resumed, self._begun, self._taken_up = bool(self._taken_up), True, {}
        return Opened(self._anew() if resumed else iterate(self._data), length, {})

    def _anew(self) -> Iterator[Any]:
        """An epoch after a resume between two; data may still have the end of the former one to come to."""
        iterator = iterate(self._data)
        first = next(iterator, self)
        if first is not self:
            return itertools.chain([first], iterator)
        return iterate(self._data)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        if not self._taken_up:
            raise _begun_otherwise(self._data, drawn)
        announce_epoch(self._data, epoch)
        self._load()
        return self._moving_on(iterate(self._data))

    def _moving_on(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            self._taken_up = {}
            yield batch
        self._taken_up = {}

    def position(self) -> dict[str, Any]:
        if self._taken_up or not self._begun:  # asked before the first `iter()`, torchdata's loader begins an epoch
            return dict(self._taken_up)
        return {"data": self._data.state_dict()}

    def take_up(self, position: dict[str, Any], *, inside: bool) -> None:
        if "data" not in position:
            return
        self._taken_up, self._begun = {"data": position["data"]}, True
        if not inside:
            with RandomAside([*HOST.values(), *generators_of(self._data)]):
                self._load()
                iterate(self._data)  # the rest of the former epoch, of which nothing is left: the next one is new

    def _load(self) -> None:
        self._data.load_state_dict(copy.deepcopy(self._taken_up["data"]))  # what is reported must stay as it is


@final
class Replayed(Source):
    """Anything that can be iterated over again: the same random state at `iter()` gives the same batches.

    That holds for what is drawn when an epoch begins. What is drawn later, while training draws in between, comes from
    a `Stream`: around the sampler of a DataLoader, or around the whole iterator. Samplers of torch's own that draw at
    once need none, nor does an iterable data set in workers, which are processes with random numbers of their own.

    Arguments:
        once: True for data that cannot be iterated over again: it can be opened, and not reopened where it was begun.
    """

    def __init__(self, data: Any, once: bool = False) -> None:
        self._data, self._once = data, once
        # What this process augments and collates comes out otherwise in a replay, where it is dropped.
        in_process = isinstance(data, DataLoader) and not data.num_workers
        self.redraws = not in_process or isinstance(data.dataset, IterableDataset)

    def open(self, epoch: int) -> Opened:
        announce_epoch(self._data, epoch)
        length = _length(self._data)
        state: dict[str, Any] = {
            "random": capture_random(),
            "generators": [one.get_state() for one in generators_of(self._data)],
            "streams": {},
        }
        if self._once:
            state["once"] = True
        return Opened(self._begin(state), length, state)

    def _begin(self, state: dict[str, Any]) -> Iterator[Any]:
        iterator = iterate(self._data)
        if isinstance(self._data, DataLoader):
            if isinstance(self._data.dataset, IterableDataset):
                at_once = self._data.num_workers > 0
            else:
                at_once = draws_at_once(self._data)
            if at_once:
                return iterator
            if not self.redraws and hasattr(iterator, "_sampler_iter"):  # augmentation is drawn as in a loop by hand
                iterator._sampler_iter = self._stream(iterator._sampler_iter, state)
                return iterator
        return self._stream(iterator, state)

    def _stream(self, iterator: Iterator[Any], state: dict[str, Any]) -> Stream:
        own = {f"{number}": one for number, one in enumerate(generators_of(self._data))}
        return Stream(iterator, {**HOST, **own}, state["streams"])

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        if "random" not in state:
            raise _begun_otherwise(self._data, drawn)
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
        iterator = self._begin(state)
        for number in range(drawn):
            if next(iterator, self) is self:
                raise DataError(f"the data ended after {number} batches; it gave {drawn} before: it has changed")
        return iterator


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def _begun_otherwise(data: Any, drawn: int) -> DataError:
    return DataError(
        f"the run is inside an epoch that was begun with data of another kind: where it stands, after {drawn} "
        f"batches, cannot be found in a {type(data).__name__}",
        "change the data at the end of an epoch, or give a list of batches or a graphtrain.Loader",
    )
