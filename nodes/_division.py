"""How several ranks divide the batches of an epoch: what each of them draws in a round, and what of it is its own."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from torch.utils.data import DistributedSampler

from graphtrain.data import NOTHING
from graphtrain.data.batch import tensors_held, trace
from graphtrain.data.loader import Loader
from graphtrain.data.loaders import loaders_of
from graphtrain.data.samplers import parts_of
from graphtrain.data.shares import Share, Shared, round_size
from graphtrain.data.source import Numbered, Source
from graphtrain.data.wrapped import Common
from graphtrain.errors import DataError, RanksDivergedError
from graphtrain.ranks import Record
from graphtrain.state.content import content_hash

if TYPE_CHECKING:
    from graphtrain.nodes._reading import Reading
    from graphtrain.program.agreement import Agreement

Count = Callable[[Any], int]


class Round(NamedTuple):
    """One round of all ranks."""

    batch: Any  # of this rank; `NOTHING` where it has none
    counts: Sequence[int]  # the samples of every micro-batch, in the order of ranks; empty where the data has ended
    number: int  # which of the batches of the source this rank was given, from 0
    is_last: bool | None  # the epoch has no further round; None where nobody has looked
    stand_in: Any = NOTHING  # the first batch, for a rank without one that takes part in the passes of a sharded model


class Division(ABC):
    """How the batches of some data go to ranks.

    Attributes:
        source: the data, as this rank opens it.
        synchronises: True if ranks agree in every round on what they have fetched; otherwise, where an epoch opens.
        is_limited: True if it counts the batches of all ranks for the limit; otherwise the source is limited.
    """

    synchronises = False
    is_limited = True

    def __init__(self, reading: Reading, ranks: Agreement, source: Source) -> None:
        self._reading, self._ranks, self.source = reading, ranks, source

    @abstractmethod
    def draw(self, opens: bool, count: Count) -> Round:
        """The next round; it `opens` an epoch where it is the first, and `count` counts the samples in a batch."""

    def _size(self, first: int, end: int | None) -> int:
        """The micro-batches of a round in which ranks take turns in one order: rank r takes the r-th."""
        run = self._reading.run
        for path, left in run.windows.left.items():
            if left() <= 0:
                run.notify(
                    f"the window of `{path}` is full and not stepped: how many batches a step has depends on the "
                    "number of ranks; let a guard step where `accumulate.full`"
                )
        return round_size(first, end, self._ranks.world_size, run.windows())

    def _agree(self, content: Sequence[Any], length: int | None, samples: int) -> list[Record]:
        """Compare what the ranks have drawn, which is the same data on all of them, and tell its samples."""
        digest, name = bytes.fromhex(content_hash(content)[:16]), self._reading.name
        records = self._ranks.before_batch(
            Record(digest=digest, length=-1 if length is None else length, samples=samples)
        )
        for rank, record in enumerate(records):
            if record.length != records[0].length:
                both = (records[0].length, record.length)
                first, other = ("no length" if length < 0 else f"{length} batches" for length in both)
                raise RanksDivergedError(
                    f"{name} has {first} on rank 0, and {other} on rank {rank}",
                    "give every rank the same data",
                )
            if record.digest != records[0].digest:
                raise RanksDivergedError(
                    f"{name} gives other batches on rank {rank} than on rank 0",
                    "seed the generator that it draws from, or use a graphtrain.Loader, whose order follows from the "
                    "seed",
                )
        return records


@final
class _ByNumber(Division):
    """A `Loader`: every rank loads its own batches, and knows of the others by their numbers."""

    def draw(self, opens: bool, count: Count) -> Round:
        reading, rank = self._reading, self._ranks.rank
        share, first = reading.batches, reading.consumed()
        assert isinstance(share, Share), "what the source has opened"
        size = self._size(first, share.end) if first < share.end else 0
        numbers = range(first, first + size)
        batch = share.batch(first + rank) if rank < size else NOTHING
        stand_in = share.batch(first) if rank >= size > 0 and self._ranks.sharded else NOTHING
        counts = [share.epoch.samples(number) for number in numbers]
        if opens or self.synchronises:
            content = [share.epoch.indices(number) for number in numbers] if opens else ()
            records = self._agree(content, len(share.epoch), count(batch) if rank < size else 0)
            counts = [record.samples for record in records[:size]] if self.synchronises else counts
        return Round(batch, counts, first + rank, first + size >= share.end, stand_in=stand_in)


@final
class _DrawnByAll(Division):
    """Data that gives one batch after the other: every rank draws those of all ranks, and keeps its own."""

    is_limited = False

    def draw(self, opens: bool, count: Count) -> Round:
        reading, rank = self._reading, self._ranks.rank
        first, end = reading.consumed(), reading.node.length
        size = self._size(first, end if end is not None and first < end else None)  # it may have more than its length
        batches = [*itertools.takewhile(lambda batch: batch is not NOTHING, (reading.next() for _ in range(size)))]
        if opens:
            self._agree([trace(tensors_held(batch)) for batch in batches], end, 0)
        batch = batches[rank] if rank < len(batches) else NOTHING
        stand_in = batches[0] if rank >= len(batches) > 0 and self._ranks.sharded else NOTHING
        return Round(batch, [*map(count, batches)], first + rank, None, stand_in=stand_in)


def division_of(reading: Reading, data: Any, source: Source, ranks: Agreement) -> Division:
    """The division among ranks of data that a node reads."""
    run, limit = reading.run, reading.limit
    loaders = loaders_of(data)
    parts = [part for loader in loaders.values() or [data] for part in parts_of(loader)]
    if any(isinstance(part, DistributedSampler) and part.num_replicas > 1 for part in parts):
        raise DataError(
            f"{run.state.name(data)} has a DistributedSampler, which gives every rank another part; and ranks take "
            "turns in the batches of one order already",
            "leave the sampler out",
        )
    if run.windows.are_expected:
        run.notify(
            "no node counts the micro-batches of a step, as `accumulate` does: a step has one of every rank, so it "
            "depends on their number"
        )
    if isinstance(data, Loader) and isinstance(source, Numbered):
        division = _ByNumber(reading, ranks, Shared(source, ranks.world_size, limit))
        division.synchronises = run.counts_by_hand
        return division
    if not isinstance(source, Numbered):
        what = "several loaders that are read together" if loaders else f"a {type(data).__name__}"
        run.notify(
            f"train or validation data is {what}: each of {ranks.world_size} ranks draws all of its batches and keeps "
            f"its own, which is {ranks.world_size} times the loading; of a graphtrain.Loader, every batch is loaded "
            "once"
        )
        source = Common(source, data, run.seed, is_shared=True)
    return _DrawnByAll(reading, ranks, source)
