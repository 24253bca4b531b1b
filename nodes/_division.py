"""How several ranks divide the batches of an epoch: what each of them draws in a round, and keeps of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from graphtrain.data import NOTHING
from graphtrain.data.batch import tensors_held, trace
from graphtrain.data.shares import Share, round_size
from graphtrain.errors import RanksDivergedError
from graphtrain.nodes._reading import Reading
from graphtrain.state.content import content_hash

if TYPE_CHECKING:
    from graphtrain.program.agreement import Agreement


class Round(NamedTuple):
    """One round of all ranks."""

    batch: Any  # of this rank; `NOTHING` where it has none
    counts: Sequence[int]  # the samples of every micro-batch, in the order of ranks; empty where the data has ended
    number: int  # which of the batches of the source this rank was given, from 0
    is_last: bool | None  # the epoch has no further round; None where nobody has looked
    stand_in: Any  # the first batch, for a rank without one that takes part in the passes of a sharded model


def draw(reading: Reading, ranks: Agreement, count: Callable[[Any], int], *, opens: bool) -> Round:
    """The next round; it `opens` an epoch where it is the first, and `count` counts the samples in a batch.

    Of a `Loader` every rank loads its own batches, and knows of the others by their numbers. Of data that gives one
    batch after the other, every rank draws those of all ranks, and keeps its own.
    """
    share, first, end, rank = reading.batches, reading.consumed(), reading.node.length, ranks.rank
    left = [each() for each in reading.run.windows]
    if not isinstance(share, Share):
        is_within = end is not None and first < end  # it may have more
        most = end if is_within else reading.node.source_state.get("limit")
        size = round_size(first, most, ranks.world_size, left)
        drawn = [*itertools.takewhile(lambda batch: batch is not NOTHING, (reading.next() for _ in range(size)))]
        if opens:
            _agree(reading, ranks, (end, [trace(tensors_held(batch)) for batch in drawn]))
        stand_in = drawn[0] if rank >= len(drawn) > 0 and ranks.sharded else NOTHING
        batch = drawn[rank] if rank < len(drawn) else NOTHING
        return Round(batch, [*map(count, drawn)], first + rank, None, stand_in)
    end = end or 0
    size = round_size(first, end, ranks.world_size, left) if first < end else 0
    numbers = range(first, first + size)
    batch = share.batch(first + rank, end) if rank < size else NOTHING
    stand_in = share.batch(first, end) if rank >= size > 0 and ranks.sharded else NOTHING
    counts = [share.epoch.samples(number) for number in numbers]
    if opens or reading.run.counts_by_hand:
        content = (len(share.epoch), [share.epoch.indices(number) for number in numbers]) if opens else ()
        records = _agree(reading, ranks, content, count(batch) if rank < size else 0)
        counts = [record["samples"] for record in records[:size]] if reading.run.counts_by_hand else counts
    return Round(batch, counts, first + rank, first + size >= end, stand_in)


def _agree(reading: Reading, ranks: Agreement, content: Sequence[Any], samples: int = 0) -> list[dict[str, Any]]:
    """Compare what the ranks have drawn, which is the same data on all of them, and tell its samples."""
    records = ranks.before_batch(digest=bytes.fromhex(content_hash(content)[:16]), samples=samples)
    for rank, record in enumerate(records):
        if record["digest"] != records[0]["digest"]:
            raise RanksDivergedError(
                f"{reading.name} gives other batches on rank {rank} than on rank 0",
                "give every rank the same data; seed the generator that it draws from, or use a graphtrain.Loader, "
                "whose order follows from the seed",
            )
    return records
