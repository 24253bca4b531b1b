"""One interface over every kind of data: its length, an epoch from the start, and an epoch from the middle.

Indexed      a sequence of batches            its position is a number
Ordered      `graphtrain.Loader`              its position is a number: order and seeds follow from (seed, epoch)
Stateful     what has `state_dict`            its position is its own, asked for when the run is captured; a batch
                                              shows a resume whether it is complete
Replayed     a DataLoader, any iterable       its position is the random state at `iter()` and a count: a resume
                                              draws the batches again and drops them. What draws its order bit by bit
                                              does so from a `Stream` of its own
"""

from __future__ import annotations

import copy
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Literal, NamedTuple, final

import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from graphtrain.data import NOTHING
from graphtrain.data.loader import Loader, NumberedEpoch, functions_of
from graphtrain.data.loaders import own_data
from graphtrain.data.redrawing import Progress, Redrawn, ended_early
from graphtrain.data.samplers import (
    announce_epoch,
    draws_at_once,
    generators_of,
    length_of,
    of_torchdata,
    selection_of,
)
from graphtrain.data.stream import Stream
from graphtrain.data.workers import iterate, shut_down
from graphtrain.errors import DataError
from graphtrain.state.code_names import names_in
from graphtrain.state.content import content_hash
from graphtrain.state.generators import HOST, with_generators, without_generators
from graphtrain.state.random import RandomAside, capture_random, restore_random

Resume = Literal["auto", "replay", "state"]

# The most of a tensor that is hashed for a sample.
_MOST_BYTES = 64 * 2**10
_REPLAY = 'next_batch.resume = "replay" draws the batches of the epoch again instead, if `__iter__` starts over'
_AT_THE_END = f"loaded after the last batch of an epoch, it must give the rest, which is empty; {_REPLAY}"
_DIFFERS = f"gives another batch after a state of its own than it gave before: that state is not complete; {_REPLAY}"
_BEGINS_AGAIN = f"has no position in a state of its own, and begins its epoch again; {_REPLAY}"
_INCOMPLETE = f"goes on from a state of its own that is not complete; {_REPLAY}"
_NO_SAMPLE = "was saved with a state of its own, before a second batch could show that it is complete"


class Opened(NamedTuple):
    """An epoch from its start: its batches, the length that the data reports, and the state that `reopen` needs."""

    batches: Iterator[Any]
    length: int | None
    state: dict[str, Any]


class Source(ABC):
    """Data with a position."""

    _data: Any
    """What is read; of several loaders, and around another source, there is none."""

    redraws = False
    """True if `reopen` draws exactly the same batches again, bit for bit."""

    replays = False
    """True if `reopen` draws all batches of the epoch again."""

    selected: torch.Tensor | None = None
    """The numbers that `select` took; None for everything."""

    redrawn: Sequence[Any] = ()
    """The last batches that `reopen` was asked to draw again; `NOTHING` for what may differ from what was drawn."""

    @abstractmethod
    def open(self, epoch: int) -> Opened:
        """Begin an epoch. The length is read after the data was told the epoch, and before `iter()`."""

    @abstractmethod
    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        """Continue an epoch after `drawn` batches. May leave the random generators, and the data, in any state.

        Whatever has to be saved beyond `drawn` is added to `state` while the epoch goes on, here as in `open`.

        Arguments:
            again: how many of the batches before are drawn again for `redrawn`; none of several loaders that are read
                together, fewer if the data has no more. Only of a source that `redraws` or `replays`. Default: none.
        """

    def select(self, indices: Any) -> torch.Tensor | None:
        """Take the numbers of what the next epoch has, or the one that is opened again; None takes everything.

        Raises:
            DataError: they are no such numbers, or this data has none.
        """
        if indices is not None:
            data = getattr(self, "_data", self)
            raise DataError(
                f"`indices` selects samples by their numbers, which a {type(data).__name__} does not draw by",
                "pass a graphtrain.Loader, which takes the keywords of DataLoader, or a list of batches",
            )
        return None

    def release(self, batches: Iterator[Any]) -> bool:
        """End the worker processes that load these batches; True if the epoch has to be reopened therefore."""
        return False

    def position(self) -> dict[str, Any]:
        """The position that the data itself reports; empty if it has none."""
        return {}

    def load_position(self, position: dict[str, Any], *, inside: bool) -> None:  # noqa: B027 - most data has none
        """Load what `position` returned: before `reopen` where that was `inside` an epoch, else before `open`."""

    def sample(self) -> dict[str, Any]:
        """A position that the data itself has reported, and a hash of the batch that followed; empty for none."""
        return {}

    def doubts(self, epoch: int, end: str, sample: Mapping[str, Any]) -> list[str]:
        """What shows that the position which was loaded is not complete. Draws batches, so `reopen` comes after.

        Arguments:
            end: if all batches of the epoch were drawn, what to say where there is another; else empty.
            sample: what `sample` returned when the run was saved.
        """
        return []


def source_of(
    data: Any,
    *,
    seed: int | None,
    saving: bool,
    notify: Callable[[str], None],
    resume: Resume = "auto",
    limit: float | None = None,
) -> Source:
    """The source for this kind of data.

    Arguments:
        seed: the run's seed, for a `Loader` that has none of its own.
        saving: True if positions will be saved; data that cannot be reopened is then refused.
        notify: called with a line about what a resume of this data will cost.
        resume: for data with a `state_dict`: "state" uses it, "replay" does not. Default: the state where it is exact.
        limit: the most batches in an epoch. Default: all.

    Raises:
        DataError: the data cannot be iterated over, or only once, or cannot be resumed as `resume` asks.
    """
    if isinstance(data, Loader):
        return Ordered(data, seed or 0)
    if isinstance(data, list | tuple):
        return Indexed(data)
    if not isinstance(data, Iterable) and not hasattr(type(data), "__getitem__"):
        raise DataError(
            f"the data is a {type(data).__name__}, which cannot be iterated over",
            "pass a graphtrain.Loader, a DataLoader, a list of batches, or any iterable of batches",
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
                f"next_batch.limit = {limit}: the data is a {type(data).__name__} that keeps its own position, which "
                "is undefined after an epoch cut short by the limit",
                'end the epochs in the data; or next_batch.resume = "replay", if its `__iter__` starts a new epoch',
            )
        return Stateful(data, saving=saving)
    # `iter()` is called on iterators only: other data may count its epochs, or open a file, in it.
    once = isinstance(data, Iterator) and not _starts_over(type(data)) and iter(data) is data
    if once and saving:
        raise DataError(
            f"the data is a {type(data).__name__} that can be iterated over only once, so no resume could be exact",
            "pass an object whose `__iter__` starts over, such as a generator method, or run without a run directory",
        )
    if saving and (isinstance(data, DataLoader) or keeps_state):
        is_for_loader = _is_map_style(data) and isinstance(data.dataset, Sized)
        if isinstance(data, DataLoader) and data.persistent_workers:
            hint = "graphtrain.Loader, which takes the same keywords, or " if is_for_loader else ""
            raise DataError(
                "a DataLoader with persistent_workers=True cannot be resumed exactly: its workers keep random states "
                "that nothing can restore",
                f"use {hint}persistent_workers=False",
            )
        cost = (
            f"train or validation data is a {type(data).__name__}: a resume inside an epoch draws that epoch's earlier "
            "batches again"
        )
        if keeps_state and resume == "auto" and limit is None:
            cost += ', since its state is not complete; next_batch.resume = "state" resumes at once but not exactly'
        if is_for_loader:
            cost += "; graphtrain.Loader takes the same keywords and resumes at once"
        notify(cost)
    return Replayed(data, once, notify)


def _starts_over(kind: type) -> bool:
    """True for a class of the user's own that begins an epoch in `__iter__`, where it, or a method that it calls, sets
    attributes: what those hold is known, so that the same epoch can begin again.
    """
    return any(names_in(function.__code__).assigned for function in functions_of(kind, "__iter__"))


def keeps_position(data: Any) -> bool:
    """True for data whose `state_dict` holds its position completely."""
    data = own_data(data)
    return _has_state(data) and _restores_itself(data, None)


def parts_beside_position(data: Any) -> dict[str, Any]:
    """The parts, by attribute, of data that keeps its position, of which its state does not hold what they hold."""
    data = own_data(data)
    if not _is_map_style(data):
        return {}
    parts = {"dataset": data.dataset, "collate_fn": data.collate_fn}
    return {name: part for name, part in parts.items() if not hasattr(type(part), "state_dict")}


def _shuffles_in_a_buffer(data: Any) -> bool:
    """True for a stream of `datasets` with a shuffle buffer, or a loader of one."""
    waiting = [getattr(each, "_ex_iterable", None) for each in (data, getattr(data, "dataset", None))]
    while waiting:
        part = waiting.pop()
        if type(part).__name__ == "BufferShuffledExamplesIterable":
            return True
        waiting += [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())] if part is not None else []
    return False


def _is_map_style(data: Any) -> bool:
    return isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset)


def _has_state(data: Any) -> bool:
    """True for data that may keep its position; the state of a module has none."""
    both = all(callable(getattr(data, name, None)) for name in ("state_dict", "load_state_dict", "__iter__"))
    return both and not isinstance(data, torch.nn.Module)


def _restores_itself(data: Any, limit: float | None) -> bool:
    """True if the state of data that has one determines its batches completely, apart from the global generators.

    That is assumed of all data, and looked at by samples, with two exceptions: a stream of `datasets` with a shuffle
    buffer, and torchdata's `StatefulDataLoader`, which does not restore the random numbers of its workers, and
    fast-forwards parts without state by drawing from whatever the generators hold at the time.
    """
    if _shuffles_in_a_buffer(data):
        return False
    if not (isinstance(data, DataLoader) and any(of_torchdata(base) for base in type(data).__mro__)):
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
        self._data = batches

    def open(self, epoch: int) -> Opened:
        if self.selected is None:
            return Opened(iter(self._data), len(self._data), {})
        return Opened(self._from(0), len(self.selected), {})

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        first = max(drawn - again, 0)
        self.redrawn = list(itertools.islice(self._from(first), drawn - first))
        return self._from(drawn)

    def select(self, indices: Any) -> torch.Tensor | None:
        self.selected = None if indices is None else selection_of(indices, len(self._data), "batches")
        return self.selected

    def _from(self, first: int) -> Iterator[Any]:
        if self.selected is None:
            return itertools.islice(self._data, first, None)
        return (self._data[number] for number in self.selected[first:].tolist())


@final
class Ordered(Source):
    """A `Loader`, the attribute `loader`: any batch of any epoch can be reproduced."""

    _data: Loader
    redraws = True

    def __init__(self, loader: Loader, seed: int) -> None:
        self._data = self.loader = loader
        self._seed = seed

    def open(self, epoch: int) -> Opened:
        numbered = self.numbered(epoch)
        return Opened(self._data.load(numbered, itertools.count()), self.length(numbered), {})

    def length(self, epoch: NumberedEpoch) -> int:
        """The batches in an epoch: what the loader says, or where its sampler has no length, what that gave."""
        length = length_of(self._data) if self.selected is None else None
        return epoch.length if length is None else length

    def numbered(self, epoch: int) -> NumberedEpoch:
        """The epoch, of which any batches can be loaded."""
        return self._data.epoch(epoch, self._seed, indices=self.selected)

    def select(self, indices: Any) -> torch.Tensor | None:
        loader = self._data
        if indices is not None and (loader.sampler is not None or loader.batch_sampler is not None):
            name = "sampler" if loader.sampler is not None else "batch_sampler"
            raise DataError(
                f"`indices` selects the samples of an epoch, and so does the {name} of the Loader",
                f"leave the {name} out, or leave `indices` unwritten",
            )
        self.selected = None if indices is None else selection_of(indices, len(loader.dataset), "samples")
        return self.selected

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        first = max(drawn - again, 0)
        batches = self._data.load(self.numbered(epoch), itertools.count(first))
        self.redrawn = list(itertools.islice(batches, drawn - first))
        return batches

    def release(self, batches: Iterator[Any]) -> bool:
        return self._data.release(batches)


@final
class Stateful(Source):
    """Data that keeps its own position: after `load_state_dict`, the next `iter()` continues from there.

    That is torchdata's convention. The state is read when the run is captured, not at every batch, and once in an epoch
    for `sample`.

    Arguments:
        saving: True takes samples. Default: False.
    """

    def __init__(self, data: Any, saving: bool = False) -> None:
        self._data = data
        self._begun = False
        self._loaded: dict[str, Any] = {}  # the position to report until the data has moved on from it
        self._sample: dict[str, Any] = {}
        self._is_complete = _restores_itself(data, None)
        # What torchdata's loader does with a map-style data set is known, and needs no sample.
        self._is_sampled = self._is_complete and not _is_map_style(data)
        self._saving = saving

    def open(self, epoch: int) -> Opened:
        announce_epoch(self._data, epoch)
        length = length_of(self._data)
        resumed, self._begun, self._loaded = bool(self._loaded), True, {}
        state = _random_of(self._data)  # from where `resume = "replay"` can draw the epoch
        iterator = iterate(self._data)
        if resumed:  # between two epochs: the data may first yield the rest of the last, which is empty
            first = next(iterator, self)
            iterator = iterate(self._data) if first is self else itertools.chain([first], iterator)
        return Opened(self._sampled(iterator, epoch), length, state)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        if not self._loaded:
            raise _position_unknown(self._data, drawn)
        return self._sampled(self._after(epoch, self._loaded["data"]), epoch)

    def _after(self, epoch: int, position: Any) -> Iterator[Any]:
        """The batches behind a position in an epoch."""
        announce_epoch(self._data, epoch)
        self._load(position)
        return iterate(self._data)

    def _sampled(self, iterator: Iterator[Any], epoch: int) -> Iterator[Any]:
        """The same batches; the second, the fourth, the eighth and so on are samples."""
        iterator = (batch for batch in iterator)  # is not asked again after its end
        yield from map(self._moved_on, itertools.islice(iterator, 1))
        self._loaded = {}
        for number in itertools.count() if self._is_sampled and self._saving else ():
            yield from itertools.islice(iterator, 2**number - 1)
            before = {"epoch": epoch, **_random_of(self._data), **copy.deepcopy(self.position())}
            yield from map(functools.partial(self._take, before), itertools.islice(iterator, 1))
            if self._sample.get("data") is not before["data"]:
                return
        yield from iterator

    def _moved_on(self, batch: Any) -> Any:
        self._loaded = {}
        return batch

    def _take(self, before: dict[str, Any], batch: Any) -> Any:
        moves = content_hash(self.position()) != content_hash({"data": before["data"]})
        self._sample = {**before, "batch": _hash_of(batch), "moves": moves}
        return batch

    def sample(self) -> dict[str, Any]:
        return self._sample

    def doubts(self, epoch: int, end: str, sample: Mapping[str, Any]) -> list[str]:
        lines = []
        if end and next(self._after(epoch, self._loaded["data"]), self) is not self:
            lines.append(f"{end}: {_AT_THE_END}")
        if not self._is_complete:
            lines.append(_INCOMPLETE)
        elif self._is_sampled and not sample:
            lines.append(_NO_SAMPLE)
        elif self._is_sampled:
            self._sample, batches = dict(sample), {sample["batch"]}
            for _ in range(2):  # what `iter` itself changes, and the state leaves out, shows the second time
                iterator = self._after(sample["epoch"], sample["data"])
                _restore_random(self._data, sample)
                batches.add(_hash_of(next(iterator, None)))
            lines += [_DIFFERS] if len(batches) > 1 else [] if sample["moves"] else [_BEGINS_AGAIN]
        return lines

    def position(self) -> dict[str, Any]:
        # Before the first `iter()` the data is not asked: for its state, torchdata's loader would begin an epoch.
        if self._loaded or not self._begun:
            return dict(self._loaded)
        return {"data": without_generators(self._data.state_dict())}

    def load_position(self, position: dict[str, Any], *, inside: bool) -> None:
        if "data" not in position:
            return
        self._loaded, self._begun = {"data": position["data"]}, True
        if not inside:
            with RandomAside([*HOST.values(), *generators_of(self._data)]):
                self._load(position["data"])
                iterate(self._data)  # the rest of the last epoch, which is empty: the next `iter()` begins a new one

    def _load(self, position: Any) -> None:
        state = copy.deepcopy(position)  # what `position` reports must not change
        self._data.load_state_dict(with_generators(state, self._data.state_dict))


def _hash_of(batch: Any) -> str:
    return content_hash(batch, most_bytes=_MOST_BYTES)


def _random_of(data: Any) -> dict[str, Any]:
    """The state of all generators that data may draw from."""
    return {"random": capture_random(), "generators": [generator.get_state() for generator in generators_of(data)]}


def _restore_random(data: Any, state: Mapping[str, Any]) -> None:
    restore_random(state["random"])
    for generator, saved in zip(generators_of(data), state["generators"], strict=False):
        generator.set_state(saved)


@final
class Replayed(Source):
    """Anything that can be iterated over repeatedly: the same random state at `iter()` gives the same batches.

    That holds for numbers drawn when an epoch begins. Numbers drawn later, interleaved with those of training, come
    from a `Stream`: around the sampler of a DataLoader, or around the whole iterator. torch's samplers that draw at
    once need none, nor does an iterable dataset in workers, which are processes with their own random numbers.

    Arguments:
        once: True for data that can be iterated over only once: it can be opened, but not reopened after that.
        notify: called with a line about batches that are drawn again, where that takes long, and about random numbers
            that differ from those of a loop written by hand.
    """

    replays = True

    def __init__(self, data: Any, once: bool = False, notify: Callable[[str], None] = lambda line: None) -> None:
        self._data, self._once, self._notify = data, once, notify
        # Augmentation in this process differs in a replay, which drops those batches.
        self.redraws = not _is_map_style(data) or data.num_workers > 0

    def open(self, epoch: int) -> Opened:
        announce_epoch(self._data, epoch)
        length = length_of(self._data)
        state = _random_of(self._data)
        return Opened(self._begin(state), length, state)

    def release(self, batches: Iterator[Any]) -> bool:
        return not self._once and shut_down(batches.iterator if isinstance(batches, Stream) else batches)

    def _begin(self, state: dict[str, Any]) -> Iterator[Any]:
        iterator = iterate(self._data)
        if isinstance(self._data, DataLoader):
            if isinstance(self._data.dataset, IterableDataset):
                at_once = self._data.num_workers > 0
            else:
                at_once = draws_at_once(self._data)
            if at_once:
                return iterator
            if not self.redraws and hasattr(
                iterator, "_sampler_iter"
            ):  # augmentation keeps using the shared generators
                iterator._sampler_iter = self._stream(iterator._sampler_iter, state)
                return iterator
        return self._stream(iterator, state)

    def _stream(self, iterator: Iterator[Any], state: dict[str, Any]) -> Stream:
        generators = {f"{number}": generator for number, generator in enumerate(generators_of(self._data))}
        return Stream(iterator, {**HOST, **generators}, state.setdefault("streams", {}), self._note_separation)

    def _note_separation(self) -> None:
        self._notify(
            f"the data, a {type(self._data).__name__}, draws random numbers between those of training, so it has a "
            "generator of its own from here on; a loop by hand would draw others (docs/bit-identical.md)"
        )

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        if "random" not in state:
            raise _position_unknown(self._data, drawn)
        if self._once:
            raise DataError(
                f"the data is a {type(self._data).__name__} that can be iterated over only once, and the run is in the "
                "middle of it: the node that reads it cannot be replaced without losing batches",
                "keep the node that fetches batches, and its data, until the epoch has ended",
            )
        announce_epoch(self._data, epoch)
        _restore_random(self._data, state)
        iterator = self._begin(state)
        progress = Progress(epoch, drawn, self._notify)
        redrawn, watched = list[Any](), Redrawn(iterator, self._data)
        for number in range(drawn):
            if (batch := next(watched if number >= drawn - again else iterator, NOTHING)) is NOTHING:
                raise ended_early("the data", number, drawn)
            if number >= drawn - again:
                redrawn.append(batch if watched.is_same or self.redraws or not number else NOTHING)
            progress.report(number + 1)
        self.redrawn = redrawn
        return iterator


def _position_unknown(data: Any, drawn: int) -> DataError:
    return DataError(
        f"the run is inside an epoch that was begun with another kind of data: its position, after {drawn} "
        f"batches, is not defined in a {type(data).__name__}",
        "change the data at the end of an epoch, or pass a list of batches or a graphtrain.Loader",
    )
