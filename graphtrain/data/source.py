"""One interface over every kind of data: an epoch from the start, and an epoch from the middle.

A position is the number of the epoch, how many of its batches were drawn, and a state of the kind:

Numbered     a list of batches, `graphtrain.Loader`: no state, a batch follows from its number
Stateful     what has `state_dict`: its own state, asked for when the run is captured
Replayed     a DataLoader, any iterable: the random state at `iter()`, from which a resume draws the batches again
"""

from __future__ import annotations

import copy
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, final

import torch
from torch.utils.data import DataLoader, IterableDataset

from graphtrain.data import NOTHING
from graphtrain.data.loader import Loader
from graphtrain.data.samplers import (
    announce_epoch,
    drawn_from,
    draws_at_once,
    generators_of,
    length_of,
    selection_of,
    set_states,
)
from graphtrain.data.shares import Share
from graphtrain.data.stream import Stream
from graphtrain.data.workers import iterate
from graphtrain.errors import DataError
from graphtrain.state.content import content_hash
from graphtrain.state.generators import HOST, RandomAside
from graphtrain.state.kinds import is_users

Resume = Literal["auto", "replay", "state"]
_hash_of = functools.partial(content_hash, most_bytes=64 * 2**10)
_REPLAY = 'next_batch.resume = "replay" draws the batches of an epoch again instead, if `__iter__` starts over'
_INCOMPLETE = f"resumes from a state of its own, which is not complete; {_REPLAY}"
_DIFFERS = f"gives another batch after a state of its own than before: that state is not complete; {_REPLAY}"
_NO_SAMPLE = "was saved with a state of its own, before a second batch could show that it is complete"


class Opened(NamedTuple):
    """An epoch from its start: its batches, its length as far as that is known, and the state that `reopen` needs."""

    batches: Any
    length: int | None
    state: dict[str, Any]


class Source(ABC):
    """Data with a position.

    Attributes:
        data: what is read; of several loaders, and around another source, there is none.
        redraws: True if `reopen` draws exactly the same batches again, bit for bit.
        replays: True if `reopen` draws all batches of the epoch again.
    """

    data: Any
    redraws = False
    replays = False

    @abstractmethod
    def open(self, epoch: int, indices: Any = None) -> Opened:
        """Begin an epoch, of all data or of what has the numbers `indices`.

        The length is read after the data was told the epoch, and before `iter()`.
        """

    @abstractmethod
    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        """Continue an epoch after `drawn` batches. May leave the random generators, and the data, in any state.

        Whatever has to be saved beyond `drawn` is added to `state` while the epoch goes on, here as in `open`.
        """

    def position(self) -> dict[str, Any]:
        """The position that the data itself reports; empty if it has none."""
        return {}

    def load_position(self, position: dict[str, Any]) -> None:  # noqa: B027 - most data has none
        """Take what `position` returned, for `open` or `reopen`, one of which follows."""


def source_of(
    data: Any,
    *,
    seed: int | None,
    saving: bool,
    notify: Callable[[str], None],
    doubt: Callable[[str], None] = lambda line: None,
    resume: Resume = "auto",
    limit: float | None = None,
) -> Source:
    """The source for this kind of data.

    Arguments:
        seed: the run's seed, for a `Loader` that has none of its own.
        saving: True if positions will be saved; data that cannot be reopened is then refused.
        notify: called with a line about what a resume of this data will cost.
        doubt: called with what shows, while an epoch is reopened, that its batches are not those that they were.
        resume: for data with a `state_dict`: "state" uses it, "replay" does not. Default: the state where it is exact.
        limit: the most batches in an epoch. Default: all.
    """
    kind = type(data).__name__
    if isinstance(data, Loader | list | tuple):
        return Numbered(data, seed or 0)
    if not isinstance(data, Iterable) and not hasattr(type(data), "__getitem__"):
        raise DataError(
            f"the data is a {kind}, which cannot be iterated over",
            "pass a graphtrain.Loader, a DataLoader, a list of batches, or any iterable of batches",
        )
    has_state = _has_state(data)
    if resume == "state" and not has_state:
        raise DataError(
            f'next_batch.resume = "state": the data is a {kind}, which has no state_dict and load_state_dict',
            'leave it at "auto"',
        )
    if has_state and (resume == "state" or (resume == "auto" and _is_complete(data))):
        if limit is not None and saving:
            raise DataError(
                f"next_batch.limit = {limit}: the data is a {kind} that keeps its own position, which is undefined "
                "after an epoch cut short by the limit",
                'end the epochs in the data; or next_batch.resume = "replay", if its `__iter__` starts a new epoch',
            )
        return Stateful(data, doubt)
    # `iter()` is called on iterators only: other data may count its epochs, or open a file, in it.
    once = isinstance(data, Iterator) and not is_users(type(data).__module__) and iter(data) is data
    if once and saving:
        raise DataError(
            f"the data is a {kind} that can be iterated over only once, so no resume could be exact",
            "pass an object whose `__iter__` starts over, such as a generator method, or run without a run directory",
        )
    if saving and getattr(data, "persistent_workers", False):
        raise DataError(
            "a DataLoader with persistent_workers=True cannot be resumed exactly: its workers keep random states that "
            "nothing can restore",
            "use persistent_workers=False, or a graphtrain.Loader, if the data set has samples by number",
        )
    if saving and (isinstance(data, DataLoader) or has_state):
        notify(
            f"train or validation data is a {kind}: a resume inside an epoch draws that epoch's earlier batches again; "
            "a graphtrain.Loader resumes at once, and takes the same keywords, if the data set has samples by number"
        )
    return Replayed(data, once, notify)


def keeps_position(data: Any) -> bool:
    """True for data whose `state_dict` holds its position, as far as that is known."""
    return _has_state(data) and _is_complete(data)


def _is_map_style(data: Any) -> bool:
    return isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset)


def _has_state(data: Any) -> bool:
    """True for data that may keep its position; the state of a module has none."""
    has_all = all(callable(getattr(data, name, None)) for name in ("state_dict", "load_state_dict", "__iter__"))
    return has_all and not isinstance(data, torch.nn.Module)


def _is_complete(data: Any) -> bool:
    """True if the state of data that has one may determine its batches, apart from the generators: a sample shows it.

    It does not in a stream of `datasets` with a shuffle buffer, and in a DataLoader with a state, such as torchdata's,
    unless it is in this process and its data set has one: such loaders do not restore the random numbers of workers, or
    fast-forward by drawing from the generators as they are.
    """
    if isinstance(data, DataLoader) and (data.num_workers or not _has_state(data.dataset) or _is_map_style(data)):
        return False
    waiting = [getattr(each, "_ex_iterable", None) for each in (data, getattr(data, "dataset", None))]
    for part in filter(None, waiting):  # which grows
        waiting += [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())]
    return all(type(part).__name__ != "BufferShuffledExamplesIterable" for part in waiting)


@final
class Numbered(Source):
    """A list of batches, or a `Loader`: any batch of any epoch can be reproduced.

    Attributes:
        world_size: above 1, of a `Loader` a `Share` is opened, by which each of several ranks loads its own batches.
    """

    redraws = True

    def __init__(self, data: Loader | Sequence[Any], seed: int) -> None:
        self.data, self._seed, self.world_size = data, seed, 1
        self._number = -1  # of the epoch that this process has begun: a sampler is asked for its order once
        self._epoch: Any = ()

    def open(self, epoch: int, indices: Any = None) -> Opened:
        state = self._begin(epoch, indices)
        return Opened(self._from(0), len(self._epoch), state)

    def _begin(self, epoch: int, indices: Any) -> dict[str, Any]:
        """Draw the order of an epoch; returns its state."""
        loader, is_loader = self.data, isinstance(self.data, Loader)
        by = [name for name in ("sampler", "batch_sampler") if getattr(loader, name, None) is not None]
        if indices is not None and by:
            raise DataError(
                f"`indices` selects the samples of an epoch, and so does the {by[0]} of the Loader",
                f"leave the {by[0]} out, or leave `indices` unwritten",
            )
        numbers, what = None, "samples" if is_loader else "batches"
        if indices is not None:
            numbers = selection_of(indices, len(getattr(loader, "dataset", loader)), what)
        self._number = epoch
        if isinstance(loader, Loader):
            self._epoch = loader.epoch(epoch, self._seed, indices=numbers)
        else:
            self._epoch = loader if numbers is None else [loader[number] for number in numbers.tolist()]
        return {} if numbers is None else {"indices": numbers}

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        if self._number != epoch:
            self._begin(epoch, state.get("indices"))
        return self._from(drawn)

    def _from(self, first: int) -> Any:
        if not isinstance(self.data, Loader):
            return itertools.islice(self._epoch, first, None)
        if self.world_size > 1:
            return Share(self.data, self._epoch, self.world_size)
        return self.data.load(self._epoch, itertools.count(first))


@final
class Stateful(Source):
    """Data that keeps its own position: after `load_state_dict`, the next `iter()` continues from there.

    That is torchdata's convention. The state is read when the run is captured, not at every batch, and before the
    second batch of what is opened: that batch is a sample, which shows a resume whether the state is complete.
    """

    def __init__(self, data: Any, doubt: Callable[[str], None]) -> None:
        self.data, self._doubt = data, doubt
        self._begun = False
        self._loaded: dict[str, Any] = {}  # the position to report until the data has moved on from it
        self._sample: dict[str, Any] = {}

    def open(self, epoch: int, indices: Any = None) -> Opened:
        _refuse_indices(self.data, indices)
        announce_epoch(self.data, epoch)
        loaded, self._loaded, self._begun = self._loaded, {}, True
        if loaded:  # between two epochs: what is loaded is the rest of the last, which is empty, or the next one
            with RandomAside(drawn_from(self.data)):
                self._load(loaded["data"])
                is_next = next(iterate(self.data), NOTHING) is not NOTHING
            if is_next:
                self._load(loaded["data"])
        length = length_of(self.data)
        return Opened(self._following(iterate(self.data), epoch, 0), length, {})

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        if not self._loaded:
            raise _position_unknown(self.data)
        return self._following(self._after(epoch, self._loaded["data"]), epoch, drawn)

    def _after(self, epoch: int, position: Any) -> Iterator[Any]:
        """The batches behind a position in an epoch."""
        announce_epoch(self.data, epoch)
        self._load(position)
        return iterate(self.data)

    def _load(self, position: Any) -> None:
        self.data.load_state_dict(copy.deepcopy(position))  # what `position` reports must not change

    def _following(self, batches: Iterator[Any], epoch: int, drawn: int) -> Iterator[Any]:
        """The same batches. After the first the data reports its position; the second of an epoch is the sample."""
        for number in itertools.count(drawn):
            before: dict[str, Any] = {}
            if number == 1:
                random = [each.get_state() for each in drawn_from(self.data)]
                before = {"epoch": epoch, "random": random, "data": copy.deepcopy(self.position()["data"])}
            batch = next(batches, NOTHING)
            self._loaded = {}
            if batch is NOTHING:
                return
            if before:
                self._sample = {**before, "batch": _hash_of(batch)}
            yield batch

    def _doubt_from_sample(self) -> str:
        """What shows that the state may not be complete; empty if the sample is drawn again as it was."""
        sample, hashes = self._sample, set()
        if not _is_complete(self.data) or not sample:
            return _NO_SAMPLE if _is_complete(self.data) else _INCOMPLETE
        with RandomAside(drawn_from(self.data)):
            for _ in range(2):  # what `iter` changes and the state leaves out shows the second time
                batches = self._after(sample["epoch"], sample["data"])
                set_states(drawn_from(self.data), sample["random"])
                hashes.add(_hash_of(next(batches, None)))
        return "" if hashes == {sample["batch"]} else _DIFFERS

    def position(self) -> dict[str, Any]:
        # Before the first `iter()` the data is not asked: for its state, torchdata's loader would begin an epoch.
        if self._loaded or not self._begun:
            return dict(self._loaded)
        return {"data": self.data.state_dict(), "sample": self._sample}

    def load_position(self, position: dict[str, Any]) -> None:
        if "data" in position:
            self._loaded, self._sample, self._begun = dict(position), position["sample"], True
            if line := self._doubt_from_sample():
                self._doubt(line)


@final
class Replayed(Source):
    """Anything that can be iterated over repeatedly: the same random state at `iter()` gives the same batches.

    That holds for numbers drawn when an epoch begins. Numbers drawn later, interleaved with those of training, come
    from a `Stream`: around the sampler of a DataLoader, or around the whole iterator. torch's samplers that draw at
    once need none, nor does an iterable dataset in workers, which are processes with their own random numbers.

    Arguments:
        once: True for data that can be iterated over only once: it can be opened, but not reopened after that.
    """

    replays = True

    def __init__(self, data: Any, once: bool, notify: Callable[[str], None]) -> None:
        self.data, self._once, self._notify = data, once, notify
        # Augmentation in this process differs in a replay, which drops those batches.
        self.redraws = not _is_map_style(data) or data.num_workers > 0

    def open(self, epoch: int, indices: Any = None) -> Opened:
        _refuse_indices(self.data, indices)
        announce_epoch(self.data, epoch)
        length, state = length_of(self.data), {"opened": self._random_states()}
        return Opened(self._noted(self._begin(state), state), length, state)

    def _random_states(self) -> list[Any]:
        return [generator.get_state() for generator in drawn_from(self.data)]

    def _noted(self, batches: Iterator[Any], state: dict[str, Any]) -> Iterator[Any]:
        """The same batches; others may draw random numbers between `iter()` and the first."""
        if "first" in state:  # which is drawn again
            set_states(drawn_from(self.data), state["first"])
        else:
            state["first"] = self._random_states()
        yield from batches

    def _begin(self, state: dict[str, Any]) -> Iterator[Any]:
        iterator: Any = iterate(self.data)
        batches: Iterator[Any] = iterator
        if isinstance(self.data, DataLoader):
            is_stream = isinstance(self.data.dataset, IterableDataset)
            if self.data.num_workers > 0 if is_stream else draws_at_once(self.data):
                return batches
            if not self.redraws and hasattr(iterator, "_sampler_iter"):  # augmentation uses the shared generators
                iterator._sampler_iter = self._stream(iterator._sampler_iter, state)
                return batches
        return self._stream(batches, state)

    def _stream(self, iterator: Iterator[Any], state: dict[str, Any]) -> Stream:
        generators = {**HOST, **{f"{number}": each for number, each in enumerate(generators_of(self.data))}}
        line = (
            f"the data, a {type(self.data).__name__}, draws random numbers between those of training, so it has a "
            "generator of its own from here on; a loop by hand would draw others (docs/bit-identical.md)"
        )
        return Stream(iterator, generators, state.setdefault("streams", {}), functools.partial(self._notify, line))

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        if "opened" not in state or self._once:
            raise _position_unknown(self.data)
        announce_epoch(self.data, epoch)
        set_states(drawn_from(self.data), state["opened"])
        iterator = self._noted(self._begin(state), state)
        for number in range(drawn):
            if next(iterator, NOTHING) is NOTHING:
                raise ended_early(number, drawn)
        return iterator


def ended_early(number: int, drawn: int) -> DataError:
    """The error where data ends before a batch that it gave before."""
    return DataError(
        f"the data ended after {number} batches, it gave {drawn} before: it has changed",
        "restore it; and `setup` must not draw batches from it, unless `__iter__` starts over",
    )


def _refuse_indices(data: Any, indices: Any) -> None:
    if indices is not None:
        raise DataError(
            f"`indices` selects samples by their numbers, which a {type(data).__name__} does not draw by",
            "pass a graphtrain.Loader, which takes the keywords of DataLoader, or a list of batches",
        )


def _position_unknown(data: Any) -> DataError:
    return DataError(
        "the run is inside an epoch that was begun with another kind of data, or another `next_batch.resume`, or with "
        f"data that can be iterated over only once: its position is not defined in a {type(data).__name__}",
        "change them, or the node that fetches batches, at the end of an epoch; or pass a list or a graphtrain.Loader",
    )
