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
import dis
import itertools
import time
import types
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, final

import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from graphtrain.data.loader import Loader, NumberedEpoch
from graphtrain.data.loaders import own_data
from graphtrain.data.samplers import (
    announce_epoch,
    draws_at_once,
    generators_of,
    length_of,
    of_torchdata,
    samples_per_batch,
    selection_of,
)
from graphtrain.data.stream import Stream
from graphtrain.data.workers import iterate, shut_down
from graphtrain.errors import DataError
from graphtrain.state.category import is_users
from graphtrain.state.generators import HOST, with_generators, without_generators
from graphtrain.state.random import RandomAside, capture_random, restore_random
from graphtrain.state.reachable import names_in

Resume = Literal["auto", "replay", "state"]

# Batches that are drawn again are reported after so long, and then every so often.
_FIRST_REPORT_SECONDS = 2.0
_REPORT_SECONDS = 10.0


class Opened(NamedTuple):
    """An epoch from its start: its batches, the length that the data reports, and the state that `reopen` needs."""

    batches: Iterator[Any]
    length: int | None
    state: dict[str, Any]


class Recut(NamedTuple):
    """How an epoch continues with another batch size.

    Attributes:
        cut: the batches drawn so far, and the number of the sample that comes next: part of the state of the epoch.
        length: the batches that the epoch will have, once it is reopened.
        text: what that means, in words.
        is_complete: True if every sample that remains is seen, once, in the order of the epoch.
    """

    cut: dict[str, int]
    length: Callable[[], int | None]
    text: str
    is_complete: bool


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
    """The last batches that `reopen` was asked to draw again."""

    @abstractmethod
    def open(self, epoch: int) -> Opened:
        """Begin an epoch. The length is read after the data was told the epoch, and before `iter()`."""

    @abstractmethod
    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        """Continue an epoch after `drawn` batches. May leave the random generators, and the data, in any state.

        Whatever has to be saved beyond `drawn` is added to `state` while the epoch goes on, here as in `open`.

        Arguments:
            again: how many of the batches before are drawn again for `redrawn`; fewer if the data has no more. Only of
                a source that `redraws`. Default: none.
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

    def has_length(self) -> bool:
        """False if the length of an epoch is not known."""
        return length_of(self._data) is not None

    def release(self, batches: Iterator[Any]) -> bool:
        """End the worker processes that load these batches; True if the epoch has to be reopened therefore."""
        return False

    def recut(self, drawn: int, state: dict[str, Any], size: int | None) -> Recut | None:
        """What becomes of an epoch that was begun with another batch size; None where it has not changed.

        Arguments:
            drawn: the batches drawn of it.
            size: the samples in each when the run was saved; None where that is not known.
        """
        return None

    def unsaved(self) -> list[str]:
        """What a save cannot hold of this data, as far as it is known: each says what about the data."""
        return []

    def position(self) -> dict[str, Any]:
        """The position that the data itself reports; empty if it has none."""
        return {}

    def load_position(self, position: dict[str, Any], *, inside: bool) -> None:  # noqa: B027 - most data has none
        """Load what `position` returned: before `reopen` where that was `inside` an epoch, else before `open`."""


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
        return Stateful(data)
    # `iter()` is called on iterators only: other data may count its epochs, or open a file, in it.
    once = isinstance(data, Iterator) and not _starts_over(type(data)) and iter(data) is data
    if once and saving:
        raise DataError(
            f"the data is a {type(data).__name__} that can be iterated over only once, so no resume could be exact",
            "pass an object whose `__iter__` starts over, such as a generator method, or run without a run directory",
        )
    if isinstance(data, DataLoader) and saving:
        if data.persistent_workers:
            raise DataError(
                "a DataLoader with persistent_workers=True cannot be resumed exactly: its workers keep random states "
                "that nothing can restore",
                "use graphtrain.Loader, which takes the same keywords, or persistent_workers=False",
            )
        cost = (
            f"train or validation data is a {type(data).__name__}: a resume inside an epoch draws that epoch's earlier "
            "batches again"
        )
        if keeps_state and resume == "auto" and limit is None:
            cost += (
                ', since its state_dict does not restore all random numbers; next_batch.resume = "state" resumes at '
                "once but not exactly, graphtrain.Loader at once and exactly"
            )
        else:
            cost += "; graphtrain.Loader takes the same keywords and resumes at once"
        notify(cost)
    return Replayed(data, once, notify)


def _starts_over(kind: type) -> bool:
    """True for a class of the user's own that begins an epoch in `__iter__`, where it, or a method that it calls, sets
    attributes: what those hold is known, so that the same epoch can begin again.
    """
    function = getattr(kind, "__iter__", None)
    if not isinstance(function, types.FunctionType) or not is_users(function.__module__):
        return False
    return any(names_in(code).assigned for code in _codes_of(kind, function.__code__))


def _codes_of(kind: type, code: types.CodeType) -> list[types.CodeType]:
    """The code of a method, and of all methods that it calls."""
    codes = [code]
    for each in codes:
        methods = [getattr(kind, name, None) for name in names_in(each).attributes]
        called = [method.__code__ for method in methods if isinstance(method, types.FunctionType)]
        codes += [other for other in dict.fromkeys(called) if other not in codes]
    return codes


def _notes_position(kind: type) -> bool:
    """True for a class whose `__iter__` sets attributes while it goes on: in a loop, or by a method that it calls."""
    code = kind.__iter__.__code__  # type: ignore[attr-defined]
    instructions = [*dis.get_instructions(code)]
    jumps = (each for each in instructions if each.opcode in (*dis.hasjrel, *dis.hasjabs))
    loops = [range(each.argval, each.offset) for each in jumps]  # those that jump forwards are empty
    sets = [each.offset for each in instructions if each.opname == "STORE_ATTR"]
    methods = _codes_of(kind, code)[1:]
    return any(offset in loop for offset in sets for loop in loops) or any(names_in(each).assigned for each in methods)


def _delegates(kind: type) -> bool:
    """True for a class whose `state_dict` calls that of another object, which may have the position."""
    for base in kind.__mro__:
        if isinstance(function := vars(base).get("state_dict"), types.FunctionType):
            names = names_in(function.__code__)
            called = [each.argval for each in dis.get_instructions(function)].count("state_dict")
            if called > 1 or "super" not in names.variables:  # else that of a base
                return "state_dict" in names.attributes
    return False


def keeps_position(data: Any) -> bool:
    """True for data whose `state_dict` holds its position completely."""
    data = own_data(data)
    return _has_state(data) and _restores_itself(data, None)


def parts_beside_position(data: Any) -> dict[str, Any]:
    """The parts, by attribute, of data that keeps its position, of which its state does not hold what they hold."""
    data = own_data(data)
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return {}
    parts = {"dataset": data.dataset, "collate_fn": data.collate_fn}
    return {name: part for name, part in parts.items() if not hasattr(type(part), "state_dict")}


def _has_state(data: Any) -> bool:
    """True for data that may keep its position; the state of a module has none."""
    both = all(callable(getattr(data, name, None)) for name in ("state_dict", "load_state_dict", "__iter__"))
    return both and not isinstance(data, torch.nn.Module)


def _restores_itself(data: Any, limit: float | None) -> bool:
    """True if the state of data that has one determines its batches completely, apart from the global generators.

    That is assumed of all data except torchdata's `StatefulDataLoader`, which does not restore the random numbers of
    its workers, and fast-forwards parts without state by drawing from whatever the generators hold at the time; and
    except a class of the user's own whose state cannot have a position, which is in a generator or another iterator.
    """
    kind, functions = type(data), [type(data).__iter__, getattr(data.state_dict, "__func__", data.state_dict)]
    if all(isinstance(each, types.FunctionType) and is_users(each.__module__) for each in functions):
        delegates = _delegates(type(getattr(data.state_dict, "__self__", data)))
        if not (delegates or hasattr(kind, "__next__") or _notes_position(kind)):
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
        return Opened(self.reopen(epoch, 0, {}), self.length(), {})

    def length(self) -> int:
        """The batches in an epoch."""
        return len(self._data) if self.selected is None else self._data.batches_from(0, self.selected)

    def numbered(self, epoch: int, drawn: int, state: dict[str, Any]) -> NumberedEpoch:
        """The epoch, of which any batches can be loaded that come after its last cut; the arguments are of `reopen`."""
        sample = self._sample(drawn, state) if "cut" in state else None
        return self._data.epoch(epoch, drawn, self._seed, sample=sample, indices=self.selected)

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
        batches = self._data.load(self.numbered(epoch, first, state), itertools.count(first))
        self.redrawn = list(itertools.islice(batches, drawn - first))
        return batches

    def _sample(self, drawn: int, state: Mapping[str, Any], size: int | None = None) -> int:
        """The place in the order of the epoch after some batches of it."""
        return _sample_after(drawn, state, size or samples_per_batch(self._data) or 1)

    def recut(self, drawn: int, state: dict[str, Any], size: int | None) -> Recut | None:
        now = samples_per_batch(self._data)
        if size is None or now is None or size == now:
            return None
        sample = self._sample(drawn, state, size)
        selected = self.selected
        rest = self._data.samples_from(sample, selected)
        return Recut(
            {"batches": drawn, "sample": sample},
            lambda: drawn + self._data.batches_from(sample, selected),
            f"the {rest} samples that remain of the epoch are cut into batches of {now}",
            is_complete=True,
        )

    def unsaved(self) -> list[str]:
        return self._data.unsaved()

    def release(self, batches: Iterator[Any]) -> bool:
        return self._data.release(batches)


@final
class Stateful(Source):
    """Data that keeps its own position: after `load_state_dict`, the next `iter()` continues from there.

    That is torchdata's convention. The state is read when the run is captured, not at every batch.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        self._begun = False
        self._loaded: dict[str, Any] = {}  # the position to report until the data has moved on from it

    def open(self, epoch: int) -> Opened:
        announce_epoch(self._data, epoch)
        length = length_of(self._data)
        resumed, self._begun, self._loaded = bool(self._loaded), True, {}
        iterator = iterate(self._data)
        if resumed:  # between two epochs: the data may first yield the rest of the last, which is empty
            first = next(iterator, self)
            iterator = iterate(self._data) if first is self else itertools.chain([first], iterator)
        return Opened(iterator, length, {})

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        if not self._loaded:
            raise _position_unknown(self._data, drawn)
        announce_epoch(self._data, epoch)
        self._load()
        return self._moving_on(iterate(self._data))

    def has_more(self, epoch: int) -> bool:
        """True if there is another batch behind the position that was loaded; it is drawn, so `reopen` comes after."""
        announce_epoch(self._data, epoch)
        self._load()
        return next(iterate(self._data), self) is not self

    def _moving_on(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for batch in iterator:
            self._loaded = {}
            yield batch
        self._loaded = {}

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
                self._load()
                iterate(self._data)  # the rest of the last epoch, which is empty: the next `iter()` begins a new one

    def _load(self) -> None:
        state = copy.deepcopy(self._loaded["data"])  # what `position` reports must not change
        self._data.load_state_dict(with_generators(state, self._data.state_dict))


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
        in_process = isinstance(data, DataLoader) and not data.num_workers
        self.redraws = not in_process or isinstance(data.dataset, IterableDataset)

    def open(self, epoch: int) -> Opened:
        announce_epoch(self._data, epoch)
        length = length_of(self._data)
        state: dict[str, Any] = {
            "random": capture_random(),
            "generators": [generator.get_state() for generator in generators_of(self._data)],
            "streams": {},
        }
        if self._once:
            state["once"] = True
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
        return Stream(iterator, {**HOST, **generators}, state["streams"], self._note_separation)

    def _note_separation(self) -> None:
        self._notify(
            f"the data, a {type(self._data).__name__}, draws random numbers between those of training, so it has a "
            "generator of its own from here on; a loop by hand would draw others (docs/bit-identical.md)"
        )

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any], again: int = 0) -> Iterator[Any]:
        if "random" not in state:
            raise _position_unknown(self._data, drawn)
        if self._once and "once" in state:
            raise DataError(
                f"the data is a {type(self._data).__name__} that can be iterated over only once, and the run is in the "
                "middle of it: the node that reads it cannot be replaced without losing batches",
                "keep the node that fetches batches, and its data, until the epoch has ended",
            )
        announce_epoch(self._data, epoch)
        restore_random(state["random"])
        for generator, saved in zip(generators_of(self._data), state["generators"], strict=False):
            generator.set_state(saved)
        iterator = self._begin(state)
        if "cut" in state:
            size = samples_per_batch(self._data) or 1
            drawn = _sample_after(drawn, state, size) // size
        progress = _Progress(epoch, drawn, self._notify)
        redrawn: deque[Any] = deque(maxlen=again)
        for number in range(drawn):
            batch = next(iterator, self)
            if batch is self:
                raise DataError(
                    f"the data ended after {number} batches, it gave {drawn} before: it has changed",
                    "restore it; and `setup` must not draw batches from it, unless `__iter__` starts over",
                )
            redrawn.append(batch)
            progress.report(number + 1)
        self.redrawn = tuple(redrawn)
        return iterator

    def recut(self, drawn: int, state: dict[str, Any], size: int | None) -> Recut | None:
        now = samples_per_batch(self._data) if isinstance(self._data, DataLoader) else None
        if size is None or now is None or size == now or "random" not in state:
            return None
        # Batches are all that can be skipped: those that hold a sample which was seen before.
        seen = _sample_after(drawn, state, size)
        skipped = -(-seen // now)
        lost = f"; {skipped * now - seen} samples of it are not seen" if skipped * now > seen else ""

        def length() -> int | None:
            total = length_of(self._data)
            return None if total is None else drawn + max(total - skipped, 0)

        return Recut(
            {"batches": drawn, "sample": skipped * now},
            length,
            f"the epoch continues with batches of {now}, and was begun with batches of {size}{lost}; a "
            "graphtrain.Loader cuts what remains, in its order",
            is_complete=False,
        )


def _sample_after(drawn: int, state: Mapping[str, Any], size: int) -> int:
    """The place in the order of an epoch after some batches, of which those since the last cut have this size."""
    cut = state.get("cut", {"batches": 0, "sample": 0})
    return int(cut["sample"] + (drawn - cut["batches"]) * size)


@final
class _Progress:
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


def _position_unknown(data: Any, drawn: int) -> DataError:
    return DataError(
        f"the run is inside an epoch that was begun with another kind of data: its position, after {drawn} "
        f"batches, is not defined in a {type(data).__name__}",
        "change the data at the end of an epoch, or pass a list of batches or a graphtrain.Loader",
    )
