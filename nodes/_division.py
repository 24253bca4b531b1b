"""How several ranks divide the batches of an epoch: what each of them draws in a round, and what of it is its own."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from torch.utils.data import DistributedSampler

from graphtrain.data import NOTHING
from graphtrain.data.batch import tensors_held, trace
from graphtrain.data.loaders import RankLocal, loaders_of, own_data
from graphtrain.data.samplers import length_of, parts_of
from graphtrain.data.shares import Share, Shared, round_size
from graphtrain.data.source import Indexed, Ordered, Source
from graphtrain.data.wrapped import Common
from graphtrain.errors import DataError, RanksDivergedError
from graphtrain.ranks import Record
from graphtrain.state.content import content_hash

if TYPE_CHECKING:
    from graphtrain.nodes._opened import OpenBatches
    from graphtrain.nodes._supply import Supply
    from graphtrain.program.agreement import Agreement


class Round(NamedTuple):
    """One round of all ranks.

    Attributes:
        batch: of this rank; `NOTHING` where it has none.
        samples: how many this batch has.
        counts: the samples of every micro-batch, in the order of ranks; empty where the data has ended.
        number: which of the batches that this rank draws it was given, from 0.
        is_last: the epoch has no further round. None: nobody has looked.
        length: the micro-batches of the epoch, where that is known only now. Default: as it was.
        stand_in: the first batch of the round, for a rank without one that takes part in the passes of a sharded
            model. Default: `NOTHING`.
    """

    batch: Any
    samples: int
    counts: Sequence[int]
    number: int
    is_last: bool | None
    length: int | None = None
    stand_in: Any = NOTHING


class Division(ABC):
    """How the batches of some data go to ranks.

    Attributes:
        source: the data, as this rank opens it.
        synchronises: True if ranks agree in every round on what they have fetched; otherwise, where an epoch opens.
        keeps_ahead: False if each rank fetches its own batches again in a resume, those ahead too.
    """

    synchronises = False
    keeps_ahead = True

    def __init__(self, supply: Supply, ranks: Agreement, source: Source) -> None:
        self._supply, self._ranks, self.source = supply, ranks, source

    @abstractmethod
    def draw(self, opened: OpenBatches, opens: bool, count: Callable[[Any], int]) -> Round:
        """The next round.

        Arguments:
            opened: the batches of the epoch.
            opens: True in the first round of an epoch.
            count: the samples in a batch.
        """

    def _size(self, first: int, end: int | None) -> int:
        """The micro-batches of a round in which ranks take turns in one order: rank r takes the r-th."""
        windows = self._supply.run.windows()
        if any(window.left <= 0 for window in windows):
            self._supply.run.notify(
                f"the window of `{self._supply.run.windows.unstepped()}` is full and not stepped: how many batches a "
                "step has depends on the number of ranks; let a guard step where `accumulate.full`"
            )
        return round_size(first, end, self._ranks.world_size, windows)

    def _agree(self, content: Sequence[Any], length: int | None, samples: int) -> list[Record]:
        """Compare what the ranks have drawn, which is the same data on all of them, and tell how many samples it has.

        Raises:
            RanksDivergedError: it is not.
        """
        digest = bytes.fromhex(content_hash(content)[:16])
        records = self._ranks.with_batch(
            Record(digest=digest, length=-1 if length is None else length, samples=samples)
        )
        for rank, record in enumerate(records):
            if record.length != records[0].length:
                both = (records[0].length, record.length)
                first, other = ("no length" if length < 0 else f"{length} batches" for length in both)
                raise RanksDivergedError(
                    f"{self._supply.name} has {first} on rank 0, and {other} on rank {rank}",
                    "give every rank the same data; or pass graphtrain.rank_local(data), of which each has its own",
                )
            if record.digest != records[0].digest:
                raise RanksDivergedError(
                    f"{self._supply.name} gives other batches on rank {rank} than on rank 0",
                    "seed the generator that it draws from, or use a graphtrain.Loader, whose order follows from the "
                    "seed; or pass graphtrain.rank_local(data), of which each rank has its own",
                )
        return records


@final
class _ByNumber(Division):
    """A `Loader`: every rank loads its own batches, and knows of the others by their numbers."""

    keeps_ahead = False

    def draw(self, opened: OpenBatches, opens: bool, count: Callable[[Any], int]) -> Round:
        share, first, rank = opened.iterator, opened.consumed(), self._ranks.rank
        assert isinstance(share, Share), "what the source has opened"
        size = self._size(first, share.end) if first < share.end else 0
        numbers = range(first, first + size)
        if size:
            share.begin_round(first, size)
        batch = next(share) if rank < size else NOTHING
        stand_in = next(share) if rank >= size > 0 and share.stands_in else NOTHING
        samples = count(batch) if rank < size else 0
        counts = [share.epoch.samples(number) for number in numbers]
        if opens or self.synchronises:
            content = [share.epoch.indices(number) for number in numbers] if opens else ()
            records = self._agree(content, share.epoch.length, samples)
            counts = [record.samples for record in records[:size]] if self.synchronises else counts
        # Where a sampler gives fewer batches than its `len()`, one more round finds that the data has ended.
        is_last = first + size >= max(share.end, opened.length() or 0)
        return Round(batch, samples, counts, first + rank, is_last, stand_in=stand_in)


@final
class _DrawnByAll(Division):
    """Data that gives one batch after the other: every rank draws those of all ranks, and keeps its own."""

    def draw(self, opened: OpenBatches, opens: bool, count: Callable[[Any], int]) -> Round:
        first, rank, end = opened.consumed(), self._ranks.rank, opened.length()
        if end is None or first >= end:  # it may have more than its length says
            end = opened.most
        taken = (opened.next() for _ in range(self._size(first, end)))
        batches = list(itertools.takewhile(lambda batch: batch is not NOTHING, taken))
        counts = [*map(count, batches)]
        if opens:
            self._agree([trace(tensors_held(batch)) for batch in batches], opened.length(), 0)
        if rank >= len(batches):
            stand_in = batches[0] if batches and self._ranks.sharded else NOTHING
            return Round(NOTHING, 0, counts, first + rank, None, stand_in=stand_in)
        return Round(batches[rank], counts[rank], counts, first + rank, None)


@final
class _EachItsOwn(Division):
    """Data that is divided already: a round has one batch of every rank, and there is none where one has none left."""

    synchronises = True

    def draw(self, opened: OpenBatches, opens: bool, count: Callable[[Any], int]) -> Round:
        first, ranks = opened.consumed(), self._ranks
        size = round_size(first, opened.most, ranks.world_size, [])
        batch = opened.next() if ranks.rank < size else NOTHING
        samples = 0 if batch is NOTHING else count(batch)
        own_length = length_of(own_data(self._supply.data)) if opens else None
        has_batch = batch is not NOTHING or ranks.rank >= size
        known = -1 if own_length is None else own_length
        records = ranks.with_batch(Record(has_batch=has_batch, length=known, samples=samples))
        without = [rank for rank, record in enumerate(records) if not record.has_batch]
        if without and first == 0 and len(without) < size:
            raise DataError(
                f"`{self._supply.name}` gave no batch in this epoch on rank {', '.join(map(str, without))}: it is "
                "empty there, or was iterated over before and does not start over",
                "give every rank data that starts over at each `__iter__`, such as its own part of the files",
            )
        if without:
            return Round(NOTHING, 0, [], 0, True)
        length = opened.length()
        if opens:
            shortest = min(record.length for record in records)
            length = shortest * ranks.world_size if shortest > 0 else None
        ends = [end for end in (length, opened.most) if end is not None]
        counts = [record.samples for record in records[:size]]
        is_last = any(first + size >= end for end in ends)
        return Round(batch, samples, counts, first // ranks.world_size, is_last, length)


def division_of(supply: Supply, ranks: Agreement) -> Division:
    """The division among ranks of what a node has taken to read.

    Raises:
        DataError: a sampler divides the data already, or a share is to be taken of data whose length differs.
    """
    data, source, run, limit = supply.data, supply.source, supply.run, supply.limit
    if isinstance(data, RankLocal):
        if limit.is_share:
            raise DataError(
                f"next_batch.limit = {limit} is a share of the batches, and each rank has another number of them",
                "set limit to a number of batches, of all ranks",
            )
        return _EachItsOwn(supply, ranks, source)
    parts = [part for loader in loaders_of(data).values() or [data] for part in parts_of(loader)]
    if any(isinstance(part, DistributedSampler) and part.num_replicas > 1 for part in parts):
        raise DataError(
            f"{supply.name} has a DistributedSampler, which gives every rank another part; and ranks take turns in the "
            "batches of one order already",
            "leave the sampler out; or, to divide the data by it, pass graphtrain.rank_local(data)",
        )
    if run.windows.are_expected:
        run.notify(
            "no node counts the micro-batches of a step, as `accumulate` does: a step has one of every rank, so it "
            "depends on their number"
        )
    if isinstance(source, Ordered):
        shared = Shared(source, ranks.rank, ranks.world_size, limit, run.windows, stands_in=ranks.sharded)
        division = _ByNumber(supply, ranks, shared)
        division.synchronises = run.counts_by_hand
        return division
    if not isinstance(source, Indexed):
        what = "several loaders that are read together" if loaders_of(data) else f"a {type(data).__name__}"
        run.notify(
            f"train or validation data is {what}: each of {ranks.world_size} ranks draws all of its "
            f"batches and keeps its own, which is {ranks.world_size} times the loading; of a graphtrain.Loader, every "
            "batch is loaded once"
        )
        source = Common(source, data, run.seed)
    return _DrawnByAll(supply, ranks, source)
