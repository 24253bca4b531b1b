"""The data that a node fetches batches from: opening an epoch, fetching ahead, saving the position, resuming."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler

from graphtrain.data.batch import NOTHING, as_tuples, move, trace
from graphtrain.data.loaders import loaders_of
from graphtrain.data.samplers import drawn_from, length_of, parts_of
from graphtrain.data.shares import RankBatches, round_size
from graphtrain.data.source import Numbered, Seeds, Source, Stateful, ended_early, keeps_position, source_of
from graphtrain.data.state import AsOpened, DataState
from graphtrain.data.together import Together, empty_loader
from graphtrain.errors import DataError, RanksDivergedError
from graphtrain.kind.batch_limit import most_batches
from graphtrain.kind.declaration import WrittenBatches
from graphtrain.state.content import content_hash
from graphtrain.state.generators import PreservedRandom, same_state

if TYPE_CHECKING:
    from graphtrain.program.agreement import Agreement


class DataOfRun(NamedTuple):
    """The set-up of a node that fetches batches, besides its data; `ranks` is None for one process."""

    seed: int
    saving: bool
    notify: Callable[[str], None]
    ranks: Agreement | None
    state: DataState
    windows: Sequence[Callable[[], int]]  # each returns how many micro-batches an open window still needs
    graph_trains: bool
    counts_by_hand: bool


class Round(NamedTuple):
    """One round of all ranks."""

    batch: Any  # of this rank; `NOTHING` where it has none
    counts: Sequence[int]  # the samples of every micro-batch, in the order of ranks; empty if the data has ended
    number: int  # the number of this rank's batch among those of the source, from 0
    is_last: bool | None  # True for the last round of the epoch; None if that is not known yet
    stand_in: Any  # the first batch, with which a rank without one takes part in the passes of a sharded model


@final
class Reading:
    """The data of a node: one loader, several together, or one after the other; alone or among ranks."""

    run: DataOfRun
    limit: float | None
    move: Callable[[Any], Any] | None
    last_number: int  # among several ranks, the number of the last batch among those of the source
    is_in_turn = False  # loaders are read one after the other
    length_in_turn = 0  # of all loaders; 0 where that is not known

    def __init__(self, node: Any) -> None:
        self.node = node  # its parameters say how data is read, its progress where it is
        self.last_fetched = self._supplied = NOTHING  # the last batch, as tuples; and the data
        self._written: WrittenBatches | None = None
        # Created once: data that keeps its own position keeps it when the node is set up again.
        self._sources: dict[str, Source] = {}
        self.loaders: dict[str, Any] = {}  # those read one after the other; a single one has the name ""
        self.parts: list[Any] = []  # the data that is read, or the loaders that are read together
        self.source: Source = Numbered((), Seeds())  # until its data is written
        self.batches: Any = iter(())  # what the source has opened
        self.ahead: list[Any] = []  # fetched but not returned yet

    # ---- what is read

    def set_up(
        self, data: Any, run: DataOfRun, device: torch.device, transfer: Callable[[Any, Any], Any] | None
    ) -> None:
        """Use this data, on this device, within the limits of the node."""
        node, self.run = self.node, run
        stays = transfer is None and device.type == "cpu"  # `to` would do nothing, in 0.4 us a tensor
        self.move = None if stays else lambda batch: (transfer or move)(batch, device)
        limit = min([most for most in (node.limit, node.overfit) if most is not None], default=None)
        if data is not self._supplied or limit != self.limit:
            self._supplied, self._sources, self.limit = data, {}, limit
            self._written = data if isinstance(data, WrittenBatches) else None
            loaders = {} if run.graph_trains else loaders_of(data)
            lengths = [length_of(loader) for loader in loaders.values()]
            known = [min(length, most_batches(limit, length) or length) for length in lengths if length is not None]
            self.loaders, self.is_in_turn = loaders or {"": data}, bool(loaders)
            self.length_in_turn = sum(known) * (len(known) == len(lengths))
        if self._written is None and node.pass_over:
            self._take(*next(iter(self.loaders.items())))

    @property
    def name(self) -> str:
        """The name of the data, for messages."""
        return self.run.state.name(self.source.data)

    @property
    def has_length(self) -> bool:
        """False if the length of an epoch is not known."""
        parts = self.loaders.values() if self.is_in_turn else self.parts
        return all(length_of(part) is not None for part in parts)

    def _take(self, name: str, data: Any) -> None:
        """Read this loader from now on."""
        self.source, self.parts = self._source(name, data), [*loaders_of(data).values()] or [data]
        for part in self.parts if self.source.replays else ():
            self.run.state.note_redrawn(part)

    def _source(self, name: str, data: Any) -> Source:
        """The source of a loader, or of several together, as this rank opens it; created once."""
        if name in self._sources and self._sources[name].data is data:
            return self._sources[name]
        run, loaders = self.run, loaders_of(data)
        read = {name: _source_of(loader, run, self.limit, self.node.overfit) for name, loader in loaders.items()}
        keeping = [name for name, source in read.items() if isinstance(source, Stateful)]
        if keeping and run.saving:
            raise DataError(
                f"the loader `{keeping[0]}` keeps its own position, which an epoch of several loaders may cut short",
                "pass an iterable without a `state_dict`, whose `__iter__` starts over; or a graphtrain.Loader",
            )
        if loaders:
            source: Source = Together(data, {name: AsOpened(each, run.state) for name, each in read.items()})
        else:
            source = _source_of(data, run, self.limit, self.node.overfit)
        if run.ranks is not None:
            _divide(source, run, run.ranks)
        self._sources[name] = source if loaders else AsOpened(source, run.state)
        return self._sources[name]

    # ---- opening and closing

    def open(self, indices: Any) -> None:
        """Begin an epoch, or open the next loader of the current one."""
        node, names = self.node, [*self.loaders]
        begins = node.last or not node.opened
        if begins:
            node.epoch += node.opened
            node.epoch_batches = 0
            node.passes += 1
        node.pass_first = node.epoch_batches
        node.loader = names[0 if begins or node.loader not in names else (names.index(node.loader) + 1) % len(names)]
        data = self.loaders[node.loader] if self._written is None else self._written.now()
        self._take(node.loader, data)
        if indices is not None and (self.is_in_turn or not self.source.takes_indices):
            raise DataError(
                "`indices` selects samples of a graphtrain.Loader without a sampler, or batches of a list; "
                f"`{self.name}` is a {type(data).__name__}",
                "pass a Loader, which takes the keywords of DataLoader; or leave `indices` unwritten",
            )
        batches, length, state = self.source.open(0 if node.overfit else node.passes - 1, indices)
        if (most := most_batches(self.limit, length)) is not None:  # a changed limit applies from the next epoch on
            length, state["limit"] = None if length is None else min(length, most), most
        self.batches, node.length, node.source_state = batches, length, state
        if self.run.ranks is not None:
            self.last_fetched, node.last_batch = NOTHING, {}
        node.opened, node.pass_over = True, False
        node.last = node.exhausted = node.empty = node.ended = False
        node.turns += 1
        node.certain = node.pass_first + (node.length or 0)

    def consumed(self) -> int:
        """How many batches of the open loader the node has returned."""
        consumed: int = self.node.epoch_batches - self.node.pass_first
        return consumed

    def close(self) -> None:
        """Close the open loader, and the epoch unless another loader follows."""
        node = self.node
        if self.is_in_turn and not self.consumed():
            raise empty_loader(node.loader)
        self.end()
        node.source_state = {}
        node.last = node.ended or node.loader == [*self.loaders][-1]
        node.pass_over, node.empty = True, node.epoch_batches == 0
        if node.empty:
            epoch = f" in epoch {node.epoch + 1}" if node.epoch else ""
            self.run.notify(
                f"the data gave no batch{epoch}: it is empty, or was iterated over before and does not start over"
            )
        node.turns += 1

    def end(self) -> None:
        """Drop all further batches, which ends the workers of a loader now, not when the next epoch begins."""
        self.ahead.clear()
        self.node.fetched_ahead = 0
        self.batches = iter(())

    def release(self) -> None:
        """End the worker processes of the open loader; if another batch is fetched, it is reopened at its position."""
        if isinstance(self.batches, RankBatches):
            self.batches.release()
        elif any(getattr(part, "num_workers", 0) for part in self.parts):
            self.batches = self._reopened(self.consumed() + len(self.ahead))  # which ends the iterator that has them
            for part in self.parts:
                if not getattr(part, "persistent_workers", True):
                    part._iterator = None  # torchdata's loader keeps it

    def _reopened(self, drawn: int) -> Iterator[Any]:
        self._reopen(drawn, self._last_batch())
        for line in self.run.state.not_as_before():
            self.run.notify(line)
        yield from itertools.islice(self.batches, 1)  # `_reopen` has replaced `batches`, which give the others

    # ---- the next batch

    def next(self) -> Any:
        """The next batch; `NOTHING` at the end."""
        if not self.ahead:
            return next(self.batches, NOTHING)
        batch = self.ahead.pop(0)
        self.node.fetched_ahead = len(self.ahead)
        return batch

    def has_another(self) -> bool:
        """True if there is another batch; one that has to be fetched to know is kept in `ahead`."""
        node = self.node
        if self.ahead or (node.length is not None and self.consumed() < node.length):
            return True
        if self.consumed() == node.source_state.get("limit"):
            return False
        self.ahead += itertools.islice(self.batches, 1)
        node.fetched_ahead = len(self.ahead)
        return bool(self.ahead)

    def next_round(self, ranks: Agreement, count: Callable[[Any], int], *, opens: bool) -> Round:
        """The next round of all ranks; in the first of an epoch, if it `opens` one, they compare what they draw.

        From a `Loader`, every rank loads only its own batches. From other data, every rank draws those of all ranks.
        """
        batches, first, end, rank = self.batches, self.consumed(), self.node.length, ranks.rank
        left = [each() for each in self.run.windows]
        if not isinstance(batches, RankBatches):
            is_within = end is not None and first < end  # it may have more
            most = end if is_within else self.node.source_state.get("limit")
            size = round_size(first, most, ranks.world_size, left)
            drawn = [*itertools.takewhile(lambda batch: batch is not NOTHING, (self.next() for _ in range(size)))]
            if opens:
                _agree(ranks, self.name, (end, [trace(as_tuples(batch)) for batch in drawn]))
            stand_in = drawn[0] if rank >= len(drawn) > 0 and ranks.sharded else NOTHING
            batch = drawn[rank] if rank < len(drawn) else NOTHING
            return Round(batch, [*map(count, drawn)], first + rank, None, stand_in)
        end = end or 0
        size = round_size(first, end, ranks.world_size, left) if first < end else 0
        numbers = range(first, first + size)
        batch = batches.batch(first + rank, end) if rank < size else NOTHING
        stand_in = batches.batch(first, end) if rank >= size > 0 and ranks.sharded else NOTHING
        counts = [batches.epoch.samples(number) for number in numbers]
        if opens or self.run.counts_by_hand:
            content = (len(batches.epoch), [batches.epoch.indices(number) for number in numbers]) if opens else ()
            records = _agree(ranks, self.name, content, count(batch) if rank < size else 0)
            counts = [record["samples"] for record in records[:size]] if self.run.counts_by_hand else counts
        return Round(batch, counts, first + rank, first + size >= end, stand_in)

    # ---- saving and resuming

    def position(self) -> dict[str, Any]:
        """The positions that data reports itself, and the batches ahead if a resume cannot draw them again."""
        node = self.node
        known = {name: self._sources[name].position() for name in self.loaders if name in self._sources}
        position: dict[str, Any] = {"loaders": {name: reported for name, reported in known.items() if reported}}
        if self._written is not None and not node.pass_over and self.source.data is not self._written.now():
            position["epoch_data"] = self.source.data  # other data is already written, for the next epoch
        if self.last_fetched is not NOTHING:
            node.last_batch = self._last_batch()
        if self.ahead and not self.source.redraws:
            position["ahead"] = self.ahead
        return position

    def _last_batch(self) -> dict[str, Any]:
        """The number of the last batch among those of the source, and its trace."""
        if self.last_fetched is NOTHING:
            return {}
        number = self.consumed() - 1 if self.run.ranks is None else self.last_number
        return {"number": number, "trace": trace(self.last_fetched)}

    def load(self, position: Mapping[str, Any]) -> None:
        """Load a position; within an epoch, reopen the loader after the batches that it has given."""
        node, loaders = self.node, dict(self.loaders)
        if self._written is not None:
            loaders = {"": position.get("epoch_data", self._written.now())}
        for name, saved in position.get("loaders", {}).items():
            if loaders.get(name) is not None and (line := self._source(name, loaders[name]).load_position(saved)):
                named = f"{self.run.state.name(loaders[name])} {line}"
                self.run.state.comparisons.append(functools.partial(str, named))
        if node.pass_over:
            return
        if node.loader not in loaders:
            raise DataError(
                f"the run was saved while it read the loader `{node.loader}`; the loaders now are {', '.join(loaders)}",
                f"supply the loader `{node.loader}` too, or resume from another checkpoint",
            )
        self._take(node.loader, loaders[node.loader])
        self.ahead = position.get("ahead", [])  # the very list, which a resume fills
        self._reopen(self.consumed() + len(self.ahead), node.last_batch)
        node.certain = node.pass_first + (node.length or 0)

    def _reopen(self, drawn: int, last: Mapping[str, Any]) -> None:
        """Open the rest of the epoch, after `drawn` batches; if the last one is drawn again, it is compared."""
        node, state, source = self.node, self.run.state, self.source
        is_known = all(state.is_known(part) or keeps_position(part) for part in self.parts)
        number: int = last.get("number", drawn)
        if not (is_known and (source.redraws or source.replays) and number >= node.source_state.get("redrawn", 0)):
            number = drawn
        with PreservedRandom([generator for part in self.parts for generator in drawn_from(part)]):
            now = [copy.deepcopy(state.changed(part)) for part in self.parts]
            self.batches = batches = source.reopen(0 if node.overfit else node.passes - 1, number, node.source_state)
            if number < drawn:
                before = [generator.get_state() for generator in drawn_from(self.source.data)]
                is_of_rank = isinstance(batches, RankBatches)
                redrawn = batches.batch(number, node.length) if is_of_rank else next(batches, NOTHING)
                after = [generator.get_state() for generator in drawn_from(self.source.data)]
                if redrawn is NOTHING and source.replays:
                    raise ended_early(number, drawn)
                # A batch that draws random numbers differs: training has drawn some between two batches.
                if source.redraws or not number or all(map(same_state, before, after)):
                    self._compare(last["trace"], redrawn, number)
            if not isinstance(batches, RankBatches):
                for _ in range(number + 1, drawn):  # batches of other ranks, and those that were saved ahead
                    next(batches, NOTHING)
                self.ahead += itertools.islice(batches, node.fetched_ahead - len(self.ahead))
            for part, captured in zip(self.parts, now, strict=True):
                state.restore(part, captured)

    def _compare(self, saved: Mapping[str, Any], redrawn: Any, number: int) -> None:
        """Compare a batch that was drawn again with the trace in the checkpoint, unless training changes the data."""
        now = trace(as_tuples(redrawn))
        if now["versions"] == saved["versions"] and now["hash"] != saved["hash"]:
            line = f"{self.name} differs: batch {number + 1} of epoch {self.node.epoch + 1} is not what it was"
            state, digest = self.run.state, self.run.state.digest(self.source.data)
            # Data that training changes cannot give the same batch again, and need not.
            state.comparisons.append(lambda: line if state.digest(self.source.data) == digest else "")


def _source_of(data: Any, run: DataOfRun, limit: float | None, overfit: int | None) -> Source:
    """The source of one loader."""
    if overfit and isinstance(data, DataLoader) and not isinstance(data.sampler, SequentialSampler):
        raise DataError(
            f"next_batch.overfit = {overfit}: the data is a {type(data).__name__} with a "
            f"{type(data.sampler).__name__}, which gives other batches in every epoch",
            "leave shuffle=True out; or use graphtrain.Loader, which repeats those of its first epoch",
        )
    seeds, is_followed = Seeds(run.seed, run.ranks is not None), run.state.is_known(data)
    return source_of(data, seeds=seeds, saving=run.saving, notify=run.notify, limit=limit, is_followed=is_followed)


def _divide(source: Source, run: DataOfRun, ranks: Agreement) -> None:
    """Let ranks share the batches of a source, and notify what that costs; raises if the data is already divided."""
    parts = parts_of(*loaders_of(source.data).values() or [source.data])
    if any(isinstance(part, DistributedSampler) and part.num_replicas > 1 for part in parts):
        raise DataError(
            f"{run.state.name(source.data)} has a DistributedSampler, but ranks share the batches of one order already",
            "leave the sampler out",
        )
    if isinstance(source, Numbered):
        source.world_size = ranks.world_size
        return
    name = "several loaders" if isinstance(source, Together) else f"a {type(source.data).__name__}"
    run.notify(
        f"train or validation data is {name}: each of {ranks.world_size} ranks draws all batches and keeps its own; "
        "with a graphtrain.Loader, every batch is loaded once"
    )


def _agree(ranks: Agreement, name: str, content: Sequence[Any], samples: int = 0) -> list[dict[str, Any]]:
    """Compare what the ranks have drawn, which must be the same, and exchange the numbers of samples."""
    records = ranks.before_batch(digest=bytes.fromhex(content_hash(content)[:16]), samples=samples)
    for rank, record in enumerate(records):
        if record["digest"] != records[0]["digest"]:
            raise RanksDivergedError(
                f"{name} gives other batches on rank {rank} than on rank 0",
                "supply the same data on every rank; seed the generator that it draws from, or use a "
                "graphtrain.Loader, whose order follows from the seed",
            )
    return records
