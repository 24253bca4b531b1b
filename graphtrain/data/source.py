"""One interface over every kind of data: an epoch from the start, and an epoch from the middle.

A position is the number of the epoch, how many of its batches were drawn, and a state of the kind:

Numbered     a list of batches, `graphtrain.Loader`: no state, a batch follows from its number
Stateful     data with a `state_dict`: its own state, read when the run is saved
Replayed     a DataLoader, any iterable: the random state at `iter()`, from which a resume draws the batches again
"""

from __future__ import annotations

import copy
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import torch
from torch.utils.data import DataLoader, IterableDataset

from graphtrain.data.batch import NOTHING
from graphtrain.data.loader import Loader, derived_seed
from graphtrain.data.samplers import (
    all_generators,
    announce_epoch,
    draws_at_once,
    generators_of,
    length_of,
    selection_of,
    set_states,
)
from graphtrain.data.shares import RankBatches
from graphtrain.data.workers import iterate
from graphtrain.errors import DataError
from graphtrain.state.classes import is_users
from graphtrain.state.content import content_hash
from graphtrain.state.generators import AnyGenerator, PreservedRandom, seed_all

_hash_of = functools.partial(content_hash, most_bytes=64 * 2**10)
_DIFFERS = (
    "gives another batch after `load_state_dict` than before: its `state_dict` is incomplete; complete it, or pass an "
    "iterable without a `state_dict`: a resume then draws the batches of the epoch again"
)


class Opened(NamedTuple):
    """An epoch from its start: its batches, its length (None if unknown), and the state that `reopen` needs."""

    batches: Any
    length: int | None
    state: dict[str, Any]


class Seeds(NamedTuple):
    """Seeds by epoch and batch, for data that draws random numbers between steps: a resume draws them without steps.

    Attributes:
        seed: the seed of the run.
        are_common: True among several ranks, whose generators differ: data draws the same numbers on each of them.
    """

    seed: int = 0
    are_common: bool = False

    def of(self, state: dict[str, Any]) -> Seeds:
        """The seeds for an epoch with this state; one that several ranks have read stays common, also on one rank."""
        if self.are_common:
            state["common"] = True
        return self._replace(are_common="common" in state)

    @contextmanager
    def common(self, generators: Iterable[AnyGenerator], *numbers: int) -> Iterator[None]:
        """Within this context, all ranks draw the same numbers, from these generators too."""
        if not self.are_common:
            yield
            return
        with PreservedRandom():
            seed_all(derived_seed(self.seed, *numbers), generators)
            yield

    def following(self, batches: Iterator[Any], epoch: int) -> Iterator[Any]:
        """The batches of an epoch, each after the first drawn under its own seed (20 us)."""
        preserved = PreservedRandom()
        yield from itertools.islice(batches, 1)
        for number in itertools.count(1):
            with preserved:
                seed_all(derived_seed(self.seed, epoch, number))
                batch = next(batches, NOTHING)
            if batch is NOTHING:
                return
            yield batch


class Source(ABC):
    """Data with a position.

    Attributes:
        data: the resource that is read.
        redraws: True if `reopen` draws exactly the same batches again, bit for bit.
        replays: True if `reopen` draws all batches of the epoch again.
        takes_indices: True if `open` takes `indices`.
    """

    data: Any
    redraws = replays = takes_indices = False

    @abstractmethod
    def open(self, epoch: int, indices: Any = None) -> Opened:
        """Begin an epoch, of all data or of what `indices` select.

        The length is read after `set_epoch`, and before `iter()`.
        """

    @abstractmethod
    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        """Continue an epoch after `drawn` batches; may leave the random generators and the data in any state.

        What has to be saved besides `drawn` is added to `state` during the epoch, here as in `open`.
        """

    def position(self) -> dict[str, Any]:
        """The position that the data reports itself; empty if it reports none."""
        return {}

    def load_position(self, position: dict[str, Any]) -> str:
        """Load a position before `open` or `reopen`; returns why batches may differ, empty if they do not."""
        return ""


def source_of(
    data: Any,
    *,
    seeds: Seeds,
    saving: bool,
    notify: Callable[[str], None],
    limit: float | None = None,
    is_followed: bool = False,
) -> Source:
    """The source for this kind of data.

    Arguments:
        seeds: from the seed of the run, also for a `Loader` without one.
        saving: True if positions will be saved; data that cannot be reopened is then refused.
        notify: called with a line about what a resume of this data will cost.
        limit: the largest number of batches in an epoch. Default: all.
        is_followed: True for data whose attributes are saved: it is drawn again, even if it has a `state_dict`.
    """
    name = type(data).__name__
    if isinstance(data, Loader | list | tuple):
        return Numbered(data, seeds)
    if not isinstance(data, Iterable) and not hasattr(type(data), "__getitem__"):
        raise DataError(
            f"the data is a {name}, which cannot be iterated over",
            "pass a graphtrain.Loader, a DataLoader, a list of batches, or any iterable of batches",
        )
    if keeps_position(data) and not is_followed:
        if limit is not None and saving:
            raise DataError(
                f"next_batch.limit = {limit}: the data is a {name} that keeps its own position, which is undefined "
                "after an epoch that the limit has cut short",
                "end the epochs in the data; or pass an iterable without a `state_dict`, whose `__iter__` starts over",
            )
        return Stateful(data, seeds)
    # `iter()` is called on iterators only: other data may count its epochs, or open a file, in it.
    once = isinstance(data, Iterator) and not is_users(type(data).__module__) and iter(data) is data
    if once and saving:
        raise DataError(
            f"the data is a {name} that can be iterated over only once, so no resume could be exact",
            "pass an object whose `__iter__` starts over, such as a generator method, or run without a run directory",
        )
    if saving and getattr(data, "persistent_workers", False):
        raise DataError(
            "a DataLoader with persistent_workers=True cannot be resumed exactly: its workers keep random states that "
            "nothing can restore",
            "use persistent_workers=False; or, for a map-style dataset, a graphtrain.Loader",
        )
    if saving and (isinstance(data, DataLoader) or _has_state(data)):
        notify(
            f"train or validation data is a {name}: a resume inside an epoch draws that epoch's earlier batches again; "
            "for a map-style dataset, a graphtrain.Loader takes the same keywords, and resumes at once"
        )
    return Replayed(data, once, seeds)


def _is_map_style(data: Any) -> bool:
    return isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset)


def _has_state(data: Any) -> bool:
    """True for data with a `state_dict`, which may hold its position; that of a module does not."""
    has_all = all(callable(getattr(data, name, None)) for name in ("state_dict", "load_state_dict", "__iter__"))
    return has_all and not isinstance(data, torch.nn.Module)


def keeps_position(data: Any) -> bool:
    """True for data whose `state_dict` may determine its batches, apart from the generators.

    It does not for a stream of `datasets` with a shuffle buffer. For a stateful DataLoader, such as torchdata's, it
    does only without workers and with a stateful data set: others do not restore the random numbers of workers, or
    fast-forward by drawing from the generators as they are.
    """
    if not _has_state(data):
        return False
    if isinstance(data, DataLoader) and (data.num_workers or not _has_state(data.dataset) or _is_map_style(data)):
        return False
    waiting = [getattr(each, "_ex_iterable", None) for each in (data, getattr(data, "dataset", None))]
    for part in filter(None, waiting):  # the list grows meanwhile
        waiting += [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", ())]
    return all(type(part).__name__ != "BufferShuffledExamplesIterable" for part in waiting)


@final
class Numbered(Source):
    """A list of batches, or a `Loader`: any batch of any epoch can be reproduced.

    Attributes:
        world_size: the number of ranks; above 1, each loads its own batches of a `Loader`, by a `RankBatches`.
    """

    redraws = True

    def __init__(self, data: Loader | Sequence[Any], seeds: Seeds) -> None:
        self.takes_indices = getattr(data, "sampler", None) is getattr(data, "batch_sampler", None)  # as both are None
        self.data, self._seed, self.world_size = data, seeds.seed, 1
        self._number = -1  # of the epoch that this process has begun: a sampler is iterated over once
        self._epoch: Any = ()

    def open(self, epoch: int, indices: Any = None) -> Opened:
        return Opened(state=self._begin(epoch, indices), batches=self._from(0), length=len(self._epoch))

    def _begin(self, epoch: int, indices: Any) -> dict[str, Any]:
        """Draw the order of an epoch; returns its state."""
        self._number, loader = epoch, self.data
        numbers = None if indices is None else selection_of(indices, len(getattr(loader, "dataset", loader)))
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
            return RankBatches(self.data, self._epoch, self.world_size)
        return self.data.load(self._epoch, itertools.count(first))


@final
class Stateful(Source):
    """Data that keeps its own position: after `load_state_dict`, the next `iter()` continues from there.

    That is torchdata's convention. The state is read when the run is saved, and before the second batch of an epoch.
    A resume fetches that batch again, as a sample that shows whether the state is complete.
    """

    def __init__(self, data: Any, seeds: Seeds) -> None:
        self.data, self._seeds = data, seeds
        self._begun = False
        self._loaded: dict[str, Any] = {}  # the position to report until the data has moved on from it
        self._sample: dict[str, Any] = {}

    def open(self, epoch: int, indices: Any = None) -> Opened:
        announce_epoch(self.data, epoch)
        loaded, self._loaded, self._begun = self._loaded, {}, True
        if loaded:  # between two epochs, the position is the end of the last one, or the start of the next one
            # From the end of an epoch, torchdata's loader would begin two iterators, each of which draws a seed.
            data, state = (self.data.dataset, loaded["dataset"]) if "dataset" in loaded else (self.data, loaded["data"])
            with PreservedRandom(all_generators(self.data)):
                data.load_state_dict(copy.deepcopy(state))
                is_next = next(iterate(data), NOTHING) is not NOTHING
            if is_next:
                data.load_state_dict(copy.deepcopy(state))
        length, state = length_of(self.data), dict[str, Any]()
        seeds = self._seeds.of(state)
        with seeds.common(generators_of(self.data), epoch):
            return Opened(self._following(iterate(self.data), epoch, 0, seeds), length, state)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        if not self._loaded:
            raise position_unknown(self.data)
        seeds = self._seeds.of(state)
        return self._following(self._after(epoch, self._loaded["data"], seeds), epoch, drawn, seeds)

    def _after(self, epoch: int, position: Any, seeds: Seeds) -> Iterator[Any]:
        """The batches after a position in an epoch."""
        announce_epoch(self.data, epoch)
        self.data.load_state_dict(copy.deepcopy(position))  # what `position` reports must not change
        with seeds.common((), epoch):
            return iterate(self.data)

    def _following(self, batches: Iterator[Any], epoch: int, drawn: int, seeds: Seeds) -> Iterator[Any]:
        """The batches. After the first, the data reports its position; the second of an epoch is the sample."""
        for number in itertools.count(drawn):
            before: dict[str, Any] = {}
            with seeds.common((), epoch, number):
                if number == 1:
                    random = [each.get_state() for each in all_generators(self.data)]
                    before = {"epoch": epoch, "random": random, "data": copy.deepcopy(self.position()["data"])}
                batch = next(batches, NOTHING)
            self._loaded = {}
            if batch is NOTHING:
                return
            if before:
                self._sample = {**before, "batch": _hash_of(batch)}
            yield batch

    def load_position(self, position: dict[str, Any]) -> str:
        if "data" not in position:
            return ""
        self._loaded, self._sample, self._begun = dict(position), position["sample"], True
        sample, hashes = self._sample, set()
        if not sample:
            return "was saved before its second batch, so nothing shows whether its `state_dict` is complete"
        with PreservedRandom(all_generators(self.data)):
            for _ in range(2):  # a change by `iter` that the state does not hold shows the second time
                batches = self._after(sample["epoch"], sample["data"], self._seeds)
                set_states(all_generators(self.data), sample["random"])
                hashes.add(_hash_of(next(batches, None)))
        return "" if hashes == {sample["batch"]} else _DIFFERS

    def position(self) -> dict[str, Any]:
        # Not before the first `iter()`: for its state, torchdata's loader would begin an epoch.
        if self._loaded or not self._begun:
            return dict(self._loaded)
        position = {"data": self.data.state_dict(), "sample": self._sample}
        is_torchdatas = isinstance(self.data, DataLoader)
        return position | ({"dataset": self.data.dataset.state_dict()} if is_torchdatas else {})


@final
class Replayed(Source):
    """Anything that can be iterated over repeatedly: the same random state at `iter()` gives the same batches.

    That state determines what is drawn up to the first batch. A sampler or an iterator that may draw later, between
    steps, as a shuffle buffer does, draws each further batch under a seed. torch's samplers, which draw at once, need
    none, and neither does an iterable dataset in workers, which have their own random numbers.

    Arguments:
        once: True for data that can be iterated over only once: it can be opened, but not reopened.
    """

    replays = True

    def __init__(self, data: Any, once: bool, seeds: Seeds) -> None:
        self.data, self._once, self._seeds = data, once, seeds
        # Augmentation in this process differs in a replay, which drops those batches.
        self.redraws = not _is_map_style(data) or data.num_workers > 0

    def open(self, epoch: int, indices: Any = None) -> Opened:
        announce_epoch(self.data, epoch)
        state: dict[str, Any] = {}
        return Opened(self._batches(epoch, state), length_of(self.data), state)

    def _batches(self, epoch: int, state: dict[str, Any]) -> Iterator[Any]:
        """The batches of an epoch, the first drawn from the random state in `state`, or else from the current one."""
        seeds = self._seeds.of(state)
        with seeds.common(generators_of(self.data), epoch):
            if "random" in state:
                set_states(all_generators(self.data), state["random"])
            state.setdefault("random", [generator.get_state() for generator in all_generators(self.data)])
            batches = self._iterator(epoch, seeds)
            first = next(batches, NOTHING)
        if first is not NOTHING:
            yield first
            yield from batches

    def _iterator(self, epoch: int, seeds: Seeds) -> Iterator[Any]:
        batches = iterate(self.data)
        if isinstance(self.data, DataLoader) and not seeds.are_common:
            if draws_at_once(self.data) if _is_map_style(self.data) else self.data.num_workers > 0:
                return batches
            if not self.redraws and hasattr(batches, "_sampler_iter"):  # augmentation uses the shared generators
                batches._sampler_iter = seeds.following(batches._sampler_iter, epoch)
                return batches
        return seeds.following(batches, epoch)

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Iterator[Any]:
        if (drawn and "random" not in state) or self._once:
            raise position_unknown(self.data)
        announce_epoch(self.data, epoch)
        iterator = self._batches(epoch, state)
        for number in range(drawn):
            if next(iterator, NOTHING) is NOTHING:
                raise ended_early(number, drawn)
        return iterator


def ended_early(number: int, drawn: int) -> DataError:
    """The error for data that ends before a batch that it gave earlier."""
    return DataError(
        f"the data ended after {number} batches, but gave {drawn} before: it has changed",
        "restore it; if `setup` draws batches from it, `__iter__` must start over",
    )


def position_unknown(data: Any) -> DataError:
    """The error for an open epoch that cannot be reopened."""
    return DataError(
        "the run is inside an epoch that was begun with other data or loaders, or with data that can be iterated over "
        f"only once: its position is not defined in a {type(data).__name__}",
        "change data, loaders or the node that fetches at the end of an epoch; or pass a list or a graphtrain.Loader",
    )
