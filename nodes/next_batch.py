"""Fetch the next batch, and know exactly where in the data the run is."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from graphtrain.data.batch import EarlyMover, batch_mover, is_other, sample_counter, tensors_held, traces
from graphtrain.data.rank_local import RankLocal, own_data
from graphtrain.errors import DataError, UsageError
from graphtrain.kind import Batches, Indices, Loaders, WrittenBatches, derived_clock, node, progress
from graphtrain.kind.batch_limit import BatchLimit
from graphtrain.kind.fields import EpochFields
from graphtrain.kind.parameter import Above
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.data import common, loaders, samplers, shares, together
    from graphtrain.data import source as sources
    from graphtrain.data import state as states
    from graphtrain.data.shares import Windows
    from graphtrain.data.source import Recut, Source
    from graphtrain.data.state import DataState
    from graphtrain.data.together import Combine
    from graphtrain.nodes import _division as division
    from graphtrain.nodes import _in_turn as in_turn
    from graphtrain.nodes._division import Division, Round
    from graphtrain.nodes._in_turn import InTurn
    from graphtrain.program.agreement import Agreement
    from graphtrain.state import random
    from graphtrain.storage import encoding, state_files
    from graphtrain.storage.encoding import UnsaveableError
else:
    common = lazy_import("graphtrain.data.common")
    division = lazy_import("graphtrain.nodes._division")
    encoding = lazy_import("graphtrain.storage.encoding")
    in_turn = lazy_import("graphtrain.nodes._in_turn")
    loaders = lazy_import("graphtrain.data.loaders")
    random = lazy_import("graphtrain.state.random")
    samplers = lazy_import("graphtrain.data.samplers")
    shares = lazy_import("graphtrain.data.shares")
    sources = lazy_import("graphtrain.data.source")
    state_files = lazy_import("graphtrain.storage.state_files")
    states = lazy_import("graphtrain.data.state")
    together = lazy_import("graphtrain.data.together")
    torch = lazy_import("torch")


NOTHING = object()
_NEVER = 2**62
_AT_THE_END = (
    "loaded after the last batch of an epoch, it must give the rest, which is empty, before the next epoch; "
    'next_batch.resume = "replay" draws the batches again instead'
)
_SKIPPED = "the data gave None instead of a batch, as a `collate_fn` may: such batches count, and are not trained on"


@node(
    synchronises=True,
    writes=("batch", "samples"),
    activity="data",
    step_inputs={
        "epoch": "epoch",
        "batch_index": "own_batch_index",
        "batch_idx": "own_batch_index",
        "loader": "loader",
    },
)
class NextBatch:
    """Fetch the next batch of `train_data`; after the last one of an epoch, the next visit begins a new epoch.

    Sized data is not looked ahead in until its length is reached, unless `prefetch` is set; unsized data is looked
    ahead in by one batch. The batch ahead is kept in every checkpoint, or drawn again if it is no plain data. Data that
    gives fewer batches than its `len()` ends its epoch there (`exhausted`); data that gives more is read to its end.

    The slot `indices`, which a node of the graph may write, selects what an epoch has: the numbers of samples in the
    data set of a `graphtrain.Loader`, or of batches in a list, in this order, or shuffled where the loader shuffles. It
    is taken when an epoch is opened, as is `train_data` itself where a node writes it. Until it is written, and where
    it is None, an epoch has everything.

    A batch that is None, as a `collate_fn` may return it, is counted and skipped, which is reported once: the next one
    is taken. Among several ranks, the rank whose batch is None takes part in everything else, and its gradients count
    as zeros.

    Among several ranks, a visit fetches a batch for each of them, or as many as the epoch and the open window still
    have, and counts them all; the others get None, and nodes that read the batch are not called there. Of a
    `graphtrain.Loader` a rank loads its own batches alone; other data is drawn alike by all ranks, except what
    `graphtrain.rank_local` has wrapped, of which each has its own.

    Arguments:
        limit: the most batches in an epoch, as a number, or as a share below 1 of those that the data has: 0.25.
            Default: all.
        overfit: the same batches in every epoch, so many of them, to see whether a model can learn them by heart. A
            `graphtrain.Loader` gives those of its first epoch, with the same random numbers; a DataLoader that shuffles
            is refused, and other data has to give the same ones by itself. Default: none, all of the data.
        batches_per_epoch: batches in an epoch, whatever the data has: where it ends before, it is read again, in
            another order if it shuffles; where it has more, the next epoch continues in it. `limit` and `overfit` say
            what is read each time. Default: an epoch is one pass through the data.
        combine: how loaders are read where the data is a mapping of them. "cycle": together, a batch is a mapping with
            one of each, and a loader that ends before the longest is read again; "longest": None stands for the batch
            of one that has ended; "shortest": the epoch ends with the first that ends; "in_turn": an epoch has the
            batches of each, one loader after the other, and `limit` is that of each. Default: "cycle" in a graph that
            steps an optimizer, "in_turn" in others, such as `evaluate`.
        resume: how a resume finds its place in data that has a `state_dict`: "state" takes it, "replay" draws the
            epoch's batches again. Default: "auto", the state where that is exact, as it is not for torchdata's
            `StatefulDataLoader` with workers.
        prefetch: True fetches every batch one visit early, and on a CUDA device begins its copy, on a stream of its
            own, while the one before it trains. No batch is fetched that its epoch does not need; a resume is as exact.
            On the CPU nothing is gained, and of data that draws its random numbers bit by bit in this process, as a
            `DataLoader` without workers does, the numbers differ. A batch must not be refilled with the next one.
            Default: False.
        repeat: in a nested graph, True begins with the first epoch of the data again each time that the graph begins:
            a `graphtrain.Loader` gives the same order and random numbers. Default: False, the data goes on to its next
            epoch, as a DataLoader does.

    Writes:
        batch: the batch, on the device of the run, where `transfer(batch, device)` puts it if there is such a resource;
            otherwise tensors and what else has a method `to` are moved, in tuples, lists, mappings and dataclasses.
            None when the data was exhausted without one.
        samples: how many samples it holds: the first dimension of its first tensor, or what `batch_size(batch)` gives.

    Guard fields:
        epoch: the number of the current epoch, from 0.        epoch_batches: batches fetched in it, by all ranks.
        batches, samples: fetched since the start.             last: the batch fetched is the last of its epoch.
        exhausted: the data ended without a batch.             empty: the epoch gave no batch at all.
        epoch_length: batches that the current epoch will have; 0 where that is not known.
        batch_index: the number of the last batch in its epoch, from 0; own_batch_index: of that of this process.
        ended: a step function has asked for the end of the epoch, and it is not closed.
        epochs: epochs fetched, as an exact fraction where the length is known.
        passes: how often the data was begun, over all visits of a nested graph unless `repeat` is set.
        loader: of several loaders that are read in turn, the name of the one that is read.
        seconds: time spent training, in seconds, summed over interruptions; not while the run is stopped.

    Raises:
        UsageError: `batch_size` returned no whole number.
        DataError: `indices` are no numbers of samples, an epoch is opened before its data is written, rank_local
            data is resumed by another number of ranks, or `batches_per_epoch` is set for it or for loaders in turn.
        RanksDivergedError: the data is not the same on all ranks.
        UnsaveableError: a checkpoint is due, and the batch fetched ahead can neither be saved nor drawn again.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("next_batch", limit=100)
    >>> graph.check()
    []
    """

    epoch_fields: ClassVar[EpochFields] = EpochFields()

    limit: Annotated[int | float, Above(0)] | None = None
    overfit: Annotated[int, Above(0)] | None = None
    batches_per_epoch: Annotated[int, Above(0)] | None = None
    combine: Literal["cycle", "shortest", "longest", "in_turn"] | None = None
    resume: Literal["auto", "replay", "state"] = "auto"
    prefetch: bool = False
    repeat: bool = False

    epoch: int = progress(0)
    batches: int = progress(0)
    epoch_batches: int = progress(0, restarts="epoch", target="epoch_length")
    samples: int = progress(0)
    last: bool = progress(False)
    exhausted: bool = progress(False)
    empty: bool = progress(False)
    seconds: float = progress(0.0, in_digest=False)
    ended: bool = progress(False, in_digest=False)  # which runs of earlier versions do not have
    opened: bool = progress(False)
    length: int | None = progress(None)
    fetched_ahead: int = progress(0)
    # Of several ranks. Runs of one process, and of earlier versions, need not say it.
    round_batches: int = progress(1, in_digest=False)
    rank_local: int = progress(0, in_digest=False)  # the ranks among which the data divides itself
    idle: bool = progress(False, in_digest=False)  # the batch of this rank is None
    # Of several loaders: the one that is read, whether it has ended, and the batches of the epoch before it.
    loader: str = progress("", in_digest=False)
    between: bool = progress(False, in_digest=False)
    loader_first: int = progress(0, in_digest=False)
    # With `batches_per_epoch`: the epoch has ended and its pass through the data has not, which the next one continues.
    rest: bool = progress(False, in_digest=False)
    pass_before: int = progress(0, in_digest=False)  # the batches of the last pass through the data that has ended
    passes: int = progress(0, stays=True)
    source_state: dict[str, Any] = progress({})
    last_batch: dict[str, Any] = progress({}, in_digest=False)

    _data: Any
    _data_state: DataState
    _turns: int
    _is_early: bool  # whether batches are fetched early
    _certain: int  # before this batch of the epoch there is surely another, and nothing is looked ahead for
    _source: Source = None  # type: ignore[assignment]  # it is set up before anything is read
    _read: Callable[[Any], Source]
    _clock: Callable[[], float]
    _mark: float
    _count: Callable[[Any], int]
    _move: Callable[[Any], Any] | None
    _hold: Callable[[Any], Any]  # takes the batch ahead
    _notify: Callable[[str], None]
    _begin_copy: Callable[[list[Any]], None] | None  # of what was fetched early, by one of several ranks
    _seed: int
    _windows: Windows  # those that the batches fill
    _limit: BatchLimit
    _most: int | None  # batches of the epoch, by the limit
    _loaders: dict[str, Any]  # where the data is a mapping of them
    _in_turn: InTurn | None
    _total: int | None  # batches of all loaders; 0 where that is not known
    _is_common: bool  # the epoch was begun by several ranks
    _ranks: Agreement | None
    _divide: Callable[[Any, Source], Division]
    _division: Division  # of the data among ranks

    def __init__(self) -> None:
        self._ranks = None
        self._data = NOTHING
        self._written: WrittenBatches | None = None  # looked up when an epoch is opened
        self._loaders = {}
        self._together: dict[str, int] = {}  # how often each loader was begun, of several that are read together
        self._in_turn = self._total = self._most = None
        self._iterator: Iterator[Any] = iter(())
        self._position: Mapping[str, Any] = {}  # loaded from a checkpoint, until the data takes it
        self._ahead: list[Any] = []
        self._held: Any = NOTHING  # of the last batch that was fetched here,
        self._held_number: int | None = None  # and which it is, where other ranks fetch batches too
        self._begin_cut: Callable[[], None] | None = None  # once a batch is fetched of an epoch that is cut again

    def setup(
        self,
        train_data: Batches | Loaders | WrittenBatches,
        seed: int,
        device: Any,
        saving: bool,
        notify: Callable[[str], None],
        batch_size: Callable[[Any], int] | None = None,
        transfer: Callable[[Any, Any], Any] | None = None,
        running_seconds: Callable[[], float] | None = None,
        data_state: DataState | None = None,
        ranks: Agreement | None = None,
        windows: Windows | None = None,
        graph_trains: bool = True,
    ) -> None:
        amounts = [amount for amount in (self.limit, self.overfit) if amount is not None]
        self._limit, self._most = BatchLimit(min(amounts, default=None)), None
        self._ranks, self._seed, self._windows = ranks, seed or 0, windows or shares.Windows()
        self._data_state, self._notify = data_state or states.DataState(), notify
        self._source = self._source or sources.Indexed(())  # until its data is written
        self._held, self._begin_cut = NOTHING, None
        position, self._position = self._position, {}
        inside = not self._opens_next()  # of an epoch: this is a resume
        if self.repeat and not self.opened:
            self.passes, self._together = 0, {}
        self._written = train_data if isinstance(train_data, WrittenBatches) else None
        self._read = functools.partial(
            sources.source_of,
            seed=seed,
            saving=saving,
            notify=notify,
            resume=self.resume,
            limit=min(amounts) if self._limit else None,
        )
        if self.batches_per_epoch is not None:
            self._windows.epoch = shares.WindowCounter(
                "", vars(self), "epoch_batches", "batches_per_epoch", self._per_epoch
            )
        if ranks is not None:
            self._divide = functools.partial(
                division.division_of,
                ranks=ranks,
                windows=self._windows,
                name=lambda: self._data_state.name(self._data),
                seed=self._seed,
                limit=self._limit,
                counts_by_hand=batch_size is not None,
                notify=notify,
            )
        self._is_early = self.prefetch
        self._is_common = inside and ranks is None and bool(self.source_state.get("common"))
        combine = self.combine or ("cycle" if graph_trains else "in_turn")
        self._loaders = loaders.loaders_of(own_data(train_data))
        self._refuse_other_epochs(train_data, combine)
        if self._loaders and (combine != "in_turn" or isinstance(train_data, RankLocal)):
            self._take_together(train_data, combine, saving=saving)
        elif self._loaders:
            self._turn_to(self._loaders, position, inside=inside)
        elif self._written is None:
            self._take(train_data)
        elif inside:
            self._take(position["epoch_data"] if "epoch_data" in position else self._written.now())
        self._count = sample_counter() if batch_size is None else _whole(batch_size)
        self._turns = 0
        self._clock = running_seconds or time.monotonic
        self._mark = self._clock()
        if inside:
            self._most = self._limit.of(self.length)
        self._certain = self._first_uncertain()
        self._source.load_position(dict(position), inside=inside)
        self._ahead = position.get("ahead", []) if inside else []  # into which a resume puts what the batch shares
        if ranks is not None and inside and not self._division.early:
            self._ahead, self.fetched_ahead = [], 0  # each rank fetches its own again
        if inside:
            self._source.select(self.source_state.get("indices"))
            self._iterator = self._resumed()
            if self.ended:
                self._end_data()
        self._move, self._hold, self._begin_copy = batch_mover(device), self._ahead.append, None
        if transfer is not None:
            self._move = functools.partial(_transferred, transfer, device)
        elif self.prefetch and device.type == "cuda":
            early = EarlyMover(device)
            if ranks is None:
                self._move, self._hold = early.move, self._begin_early(early)
            else:
                self._move, self._begin_copy = early.move, early.begin_only

    def _take_together(self, data: Any, combine: Combine, *, saving: bool) -> None:
        """Read several loaders together."""
        if isinstance(data, RankLocal) or any(isinstance(loader, RankLocal) for loader in self._loaders.values()):
            raise DataError(
                f"rank_local data is read as one loader, and these are several: {', '.join(self._loaders)}",
                "give every rank the same loaders, which then take turns; or combine them in an iterable of your own",
            )
        is_fixed = self.overfit is not None
        source = together.Together(
            self._loaders, self._read, combine, self._data_state, self._together, is_fixed=is_fixed
        )
        self._together = source.passes
        keeping = [name for name, part in source.sources.items() if isinstance(part, sources.Stateful)]
        if keeping and saving:
            raise DataError(
                f"the loader `{keeping[0]}` keeps its own position, which is undefined where an epoch ends before it",
                'set next_batch.resume = "replay", if its `__iter__` starts a new epoch; or pass a graphtrain.Loader',
            )
        self._take(data, source)

    def _per_epoch(self) -> int:
        return self.batches_per_epoch or 0

    def _refuse_other_epochs(self, data: Any, combine: str) -> None:
        """Raise where an epoch cannot have a number of batches of its own."""
        if self.batches_per_epoch is None:
            return
        setting = f"next_batch.batches_per_epoch = {self.batches_per_epoch}"
        if isinstance(data, RankLocal):
            raise DataError(
                f"{setting} counts batches in which ranks take turns, and rank_local data is divided among them",
                "leave one of them out; an epoch ends with the data of the first rank that has no more",
            )
        if self._loaders and combine == "in_turn":
            raise DataError(
                f"{setting}: the loaders {', '.join(self._loaders)} are read in turn, and an epoch has all of each",
                'leave it out, or set next_batch.combine = "cycle"',
            )

    def _refuse_shuffled(self) -> None:
        """Raise where data gives other batches in every epoch."""
        for data in self._parts():
            sampler = getattr(data, "sampler", None)
            if (
                isinstance(data, torch.utils.data.DataLoader)
                and sampler is not None
                and not isinstance(sampler, torch.utils.data.SequentialSampler)
            ):
                raise DataError(
                    f"next_batch.overfit = {self.overfit}: the data is a {type(data).__name__} with a "
                    f"{type(sampler).__name__}, which gives other batches in every epoch",
                    "leave shuffle=True out; or use graphtrain.Loader, which gives those of its first epoch again",
                )

    def _parts(self) -> list[Any]:
        """The data that is read, or the loaders that are read together."""
        return [self._data] if self._in_turn is not None else [*self._loaders.values()] or [self._data]

    def _turn_to(self, loaders: dict[str, Any], position: Mapping[str, Any], *, inside: bool) -> None:
        """Read several loaders, one after the other."""
        if self._in_turn is None or self._in_turn.loaders != loaders:
            self._in_turn = in_turn.InTurn(loaders)
        self._in_turn.positions.update(position.get("loaders", {}))
        self._total = None
        self._take_loader(self._in_turn, self.loader if inside else self._in_turn.after(""))

    def _opens_next(self) -> bool:
        """True if the next visit opens the data of an epoch, or another loader of one."""
        return (self.last and not self.rest) or self.between or not self.opened

    def _take_loader(self, in_turn: InTurn, name: str) -> None:
        if name not in in_turn.sources:
            in_turn.sources[name] = self._read(own_data(in_turn[name]))
        self._take(in_turn[name], in_turn.sources[name])

    def follow_windows(self, windows: Windows) -> None:
        """Fill these from now on: the graph around the node has changed, and the node has not."""
        self._windows.follow(windows)

    def _take(self, data: Any, source: Source | None = None) -> None:
        self._data, self._source = data, source or self._read(own_data(data))
        # Data that keeps its own position loses it at its end, which several ranks would reach a round early.
        self._is_early = self.prefetch and (self._ranks is None or not isinstance(self._source, sources.Stateful))
        if self.overfit is not None:
            self._refuse_shuffled()
        if self._source.replays:
            for each in self._parts():
                self._data_state.is_redrawn(each)
        if self._ranks is not None:
            self._division = self._divide(data, self._source)
            self._source = self._division.source
        elif self._is_common:
            self._source = common.Common(self._source, data, self._seed, is_shared=False)
        self._note_ranks(self._ranks.world_size if self._ranks is not None and isinstance(data, RankLocal) else 0)

    def _note_ranks(self, ranks: int) -> None:
        """Note among how many ranks the data divides itself: where that has changed, its position is not defined."""
        if self.opened and self.rank_local and ranks != self.rank_local:
            raise DataError(
                f"the data of the run is rank_local: each of {self.rank_local} ranks has its own, and what those have "
                f"read cannot be divided among {'others' if ranks else 'ranks that all read one data'}",
                f"resume with {self.rank_local} processes and rank_local data; a graphtrain.Loader can be resumed with "
                "any number of them",
            )
        if ranks and not self._opens_next() and not self.rank_local:
            raise DataError(
                "the run is inside an epoch in whose batches ranks took turns, and its data is rank_local now",
                "change the data at the end of an epoch",
            )
        self.rank_local = ranks

    def _resumed(self) -> Iterator[Any]:
        """The rest of the epoch in which the run was saved; the last batch is compared where it is drawn again."""
        state, drawn = self._data_state, self._drawn()
        recut = self._source.recut(drawn, self.source_state, self.last_batch.get("batch_size"))
        if recut is not None:
            return self._recut(recut, drawn)
        saved = self.last_batch.get("tensors")
        compares = bool(saved) and self._source.redraws and self._of_loader() > 0 and state.is_known(self._data)
        again = 1 + len(self._ahead) if compares else 0
        if compares and "number" in self.last_batch:  # of the batches of several ranks, that of this one
            again = drawn - self.last_batch["number"]
        with self._opened_again():
            # Of data that keeps its position nothing is drawn again: what is known is how many batches there may be.
            is_at_end = 0 < drawn == (self.length or self.pass_before)
            if is_at_end and isinstance(self._source, sources.Stateful) and self._source.has_more(self._data_epoch):
                expected = f"{'its length is' if self.length else 'the epoch before had'} {drawn}"
                more = (
                    f"{state.name(self._data)} has a batch {drawn + 1} in this epoch now, and {expected}: {_AT_THE_END}"
                )
                state.comparisons.append(lambda: more)
            iterator = self._source.reopen(self._data_epoch, drawn, self.source_state, again)
            batch, *_ = *self._source.redrawn, None
            if compares and (len(self._source.redrawn) < again or is_other(traces(tensors_held(batch)), saved or [])):
                place = f"batch {drawn - again + 1} of epoch {self.epoch + 1}"
                line = f"{state.name(self._data)} differs: {place} is not what it was"
                drawn_again = _digest(state.capture(self._data))
                # A batch of data that changes while it is trained on cannot be drawn again, and need not be.
                state.comparisons.append(lambda: line if _digest(state.capture(self._data)) == drawn_again else "")
            self._fetch_ahead_again(iterator)
        return iterator

    def _drawn(self) -> int:
        """How many batches of the epoch its data has given, those ahead included."""
        batches = self._of_loader()
        consumed = batches if self._ranks is None else self._division.drawn(batches)
        return consumed + len(self._ahead)

    def _fetch_ahead_again(self, iterator: Iterator[Any]) -> None:
        """Fetch the batch ahead if it was not saved, from where those before it were drawn again."""
        self._ahead += itertools.islice(iterator, self.fetched_ahead - len(self._ahead))

    def _recut(self, recut: Recut, drawn: int) -> Iterator[Any]:
        """The rest of an epoch in batches of another size. Until one is fetched, the position stays what it was."""
        line = f"{self._data_state.name(self._data)}: {recut.text}"
        if recut.is_complete:
            self._data_state.changes.append(line)
        else:
            self._data_state.comparisons.append(lambda: line)
        state = {**self.source_state, "cut": recut.cut}
        with self._opened_again():
            iterator = self._source.reopen(self._data_epoch, drawn, state)
            length = recut.length()
            self._fetch_ahead_again(iterator)

        def begin() -> None:
            self._begin_cut = None
            self.length, self.source_state = length, state
            self._most = self._limit.of(length)
            self._certain = self._first_uncertain()
            self._turns += 1

        def begun() -> Iterator[Any]:
            if self._begin_cut is not None:
                self._begin_cut()
            self._iterator = iterator
            yield from itertools.islice(iterator, 1)  # what follows is asked of the iterator itself

        self._begin_cut = begin
        return begun() if self._ranks is None else iterator

    @contextmanager
    def _opened_again(self) -> Iterator[None]:
        """A span in which data holds what it held when the epoch was opened; nothing of it is left afterwards."""
        state = self._data_state
        with ExitStack() as kept:
            kept.enter_context(random.RandomAside([*random.global_generators(), *samplers.generators_of(self._data)]))
            for data in self._parts():
                kept.enter_context(state.kept(data))
            state.restore(self._data, self.source_state.get("data", {}))
            yield

    def _begin_early(self, early: EarlyMover) -> Callable[[Any], None]:
        for batch in self._ahead:
            early.begin(batch)

        def hold(batch: Any) -> None:
            self._ahead.append(batch)
            early.begin(batch)

        return hold

    def __call__(self, indices: Indices | None = None) -> tuple[Any, int]:
        if self._ranks is not None:
            return self._take_part(self._ranks, indices)
        now = self._clock()
        self.seconds += now - self._mark
        self._mark = now
        if self.last or not self.opened or self.between:
            self._open_epoch(indices)
        batch = self._next()
        if batch is None:
            batch = self._after_none()
        kind = type(batch)
        self._held = tensors_held(batch) if kind is dict or kind is list else batch  # 0.05 us for most batches
        if batch is NOTHING:
            self.exhausted = True
            if not self.rest:
                self._close_epoch()
            return self(indices) if self.between else (None, 0)
        self.epoch_batches += 1
        self.batches += 1
        if self.epoch_batches >= self._certain:
            self._look_ahead()
        count = self._count(batch)
        self.samples += count
        return (batch if self._move is None else self._move(batch)), count

    def _after_none(self) -> Any:
        """Count a batch that is None, and those after it that are; the next one, or `NOTHING` at the end."""
        self._notify(_SKIPPED)
        batch: Any = None
        while batch is None:
            self.epoch_batches += 1
            self.batches += 1
            if self.epoch_batches >= self._certain:
                self._look_ahead()
            batch = NOTHING if self.last or self.between else self._next()
        return batch

    def _next(self) -> Any:
        if not self._ahead:
            return next(self._iterator, NOTHING)
        batch = self._ahead.pop(0)
        self.fetched_ahead = len(self._ahead)
        if self._begin_cut is not None:
            self._begin_cut()
        return batch

    def _take_part(self, ranks: Agreement, indices: Indices | None) -> tuple[Any, int]:
        """Take the batch of this rank in the next round of all of them."""
        opens = self._opens_next()
        if self.rest:
            self._continue_data()
        if opens:
            self._open_epoch(indices)
            self._held, self.last_batch = NOTHING, {}
            self.length = self._division.known_length(self.length)
        elif self._begin_cut is not None:
            self._begin_cut()
        if not (opens or self._division.synchronises):
            ranks.before_batch()
        if self.ended:
            drawn = division.Round(NOTHING, 0, (), 0, True)
        else:
            length = self._expected_length()
            drawing = division.Drawing(
                self._iterator, self._of_loader(), length, opens, self._next, self._counted, self._most
            )
            drawn = self._division.draw(drawing)
        now = self._clock()
        self.seconds += now - self._mark
        self._mark = now
        self._follow(drawn)
        if not drawn.counts and self.between:
            return self._take_part(ranks, indices)
        self.idle = drawn.batch is None
        if self.idle:
            self._notify(_SKIPPED)
        if drawn.batch is NOTHING or self.idle:
            return None, 0
        batch, kind = drawn.batch, type(drawn.batch)
        self._held = tensors_held(batch) if kind is dict or kind is list else batch
        self._held_number = drawn.number
        return (batch if self._move is None else self._move(batch)), drawn.samples

    def end_epoch(self) -> None:
        """End the epoch before its next batch, where it has one: a step function has asked for it."""
        if not self.opened or self.last or not self.epoch_batches:
            return
        self.ended = True
        if self.between:  # it was the last batch of a loader
            self._close_epoch()
        else:
            self._end_data()

    def _end_data(self) -> None:
        """Let the data of the epoch have no further batch."""
        self._ahead.clear()
        self.fetched_ahead = 0
        self._iterator = iter(())

    def _counted(self, batch: Any) -> int:
        """The samples of a batch; None has none."""
        return 0 if batch is None else self._count(batch)

    def _follow(self, drawn: Round) -> None:
        """Count a round, and see whether the epoch has another."""
        self.round_batches = len(drawn.counts)
        if drawn.length is not None:
            self.length = drawn.length
        if not drawn.counts:
            self.exhausted = True
            self._close_epoch()
            return
        self.epoch_batches += len(drawn.counts)
        self.batches += len(drawn.counts)
        self.samples += sum(drawn.counts)
        if drawn.is_last:
            self._close_epoch()
            return
        if drawn.is_last is None and self.epoch_batches >= self._certain:
            self._look_ahead()
        else:
            self._end_by_number()
        if self._is_early and not self.last:
            self._fetch_early()

    def _fetch_early(self) -> None:
        """Fetch what this rank needs in the next round."""
        if isinstance(self._iterator, shares.Share):
            fetched = self._iterator.fetch_early()
        else:
            rest = self._division.early if self._most is None else self._most - self._of_loader()
            fetched = [*itertools.islice(self._iterator, min(self._division.early, rest) - len(self._ahead))]
            self._ahead += fetched
            self.fetched_ahead = len(self._ahead)
        if self._begin_copy is not None and self._division.early <= 1:  # otherwise other ranks may need them
            self._begin_copy(fetched)

    def _look_ahead(self) -> None:
        """See whether the epoch has another batch after this one."""
        batches = self._of_loader()
        if batches == self._most:
            self._close_epoch()
        elif not self._ahead and (self._is_early or self.length is None or batches >= self.length):
            following = next(self._iterator, NOTHING)
            if following is NOTHING:
                self._close_epoch()
            else:
                self._hold(following)
                self.fetched_ahead = 1
        self._end_by_number()

    def _end_by_number(self) -> None:
        """End the epoch where it has as many batches as it is to have; what the data still has is for the next one."""
        if self.batches_per_epoch is None or self.last or self.between:
            return
        if self.epoch_batches < self.batches_per_epoch:
            return
        if self.ended:  # during this very round, by what several ranks have agreed on
            self._close_epoch()
        else:
            self.last = self.rest = True
            self._turns += 1

    def _first_uncertain(self) -> int:
        """From this batch of an epoch on, every visit looks whether there is another: the first, or the last."""
        if self._is_early or not (length := self._expected_length()):
            return 0
        end = self.loader_first + length
        return end if self.batches_per_epoch is None else min(end, self.batches_per_epoch)

    def _continue_data(self) -> None:
        """Begin an epoch with what its data still has."""
        self.loader_first -= self.epoch_batches
        self.epoch, self.epoch_batches = self.epoch + 1, 0
        self.last = self.rest = self.exhausted = self.empty = self.ended = False
        self._certain = self._first_uncertain()
        self._turns += 1

    def _open_epoch(self, indices: Indices | None) -> None:
        if self.rest:
            self._continue_data()
            return
        if self._written is not None:
            self._take_written(self._written.now())
        elif self._in_turn is not None:
            self._take_next(self._in_turn, indices)
        try:
            selected = self._source.select(indices)
        except DataError as error:
            raise DataError(f"`{self._data_state.name(self._data)}`: {error.message}", error.hint) from None
        if self.between:
            self.loader_first = self.epoch_batches
            self.passes += self._in_turn is None
        else:
            self.epoch += self.opened
            self.passes += 1
            self.epoch_batches = self.loader_first = 0
        self.opened, self.between = True, False
        self.last = self.exhausted = self.empty = self.ended = False
        # Before the data is told the epoch: a resume draws the epoch again from here.
        state = self._data_state.capture(self._data)
        self._iterator, self.length, self.source_state = self._source.open(self._data_epoch)
        self._most = self._limit.of(self.length) if self._limit else None
        if state:
            self.source_state["data"] = state
        if selected is not None:
            self.source_state["indices"] = selected
        self._certain = self._first_uncertain()
        self._turns += 1

    def _take_next(self, in_turn: InTurn, indices: Indices | None) -> None:
        """Take the next loader."""
        if indices is not None:
            raise DataError(
                f"`indices` selects samples of one data set, and there are the loaders {', '.join(in_turn.loaders)}",
                "select the samples of each in its loader, as by a Subset",
            )
        self.loader = in_turn.after(self.loader if self.between else "")
        self._is_common, self.rank_local = False, 0  # which the loader before may have been
        self._take_loader(in_turn, self.loader)
        if self.loader in in_turn.positions:
            self._source.load_position(in_turn.positions.pop(self.loader), inside=False)

    @property
    def _data_epoch(self) -> int:
        """The epoch as the data is told it: how often it was read before."""
        return self.passes - 1 if self.overfit is None else 0

    def _take_written(self, data: Any) -> None:
        if data is None:
            raise DataError(
                "an epoch is opened before anything has written its data",
                "connect the node that writes it before `next_batch`",
            )
        if data is not self._data:
            self._take(data)

    def _close_epoch(self) -> None:
        self.between = not self.ended and self._is_followed()
        self.last = not self.between
        self.empty = self.epoch_batches == 0
        self.pass_before = 0 if self.ended or self._in_turn is not None else self._of_loader()
        if self._in_turn is not None and not self._of_loader():
            raise DataError(
                f"the loader `{self.loader}` gave no batch: it is empty, or was iterated over before and does not "
                "start over",
                "leave it out of the mapping, or give it data",
            )
        if self.empty:
            epoch = f" in epoch {self.epoch + 1}" if self.epoch else ""
            self._notify(
                f"the data gave no batch{epoch}: it is empty, or was iterated over before and does not start over"
            )
        self.fetched_ahead = 0
        self._ahead.clear()  # which other ranks have none to go with
        self._iterator = iter(())  # releases the workers of a loader now, not when the next epoch begins
        self.source_state = {}
        self._turns += 1

    def _is_followed(self) -> bool:
        """True if the epoch has another loader, or its data once more."""
        if self._in_turn is not None:
            return not self._in_turn.is_last(self.loader)
        if self.batches_per_epoch is None or self.epoch_batches >= self.batches_per_epoch:
            return False
        if not self._of_loader():
            raise DataError(
                f"the data gave no batch after {self.epoch_batches} of {self.batches_per_epoch} in the epoch: it is "
                "empty, or does not start over",
                "supply data that starts over at each `__iter__`, or leave next_batch.batches_per_epoch out",
            )
        return True

    def release(self) -> None:
        """End the worker processes of the data; if another batch is fetched, the epoch is reopened where it was."""
        if self._source and self._source.release(self._iterator) and not self._opens_next():
            self._iterator = self._reopened(self._drawn())

    def _reopened(self, drawn: int) -> Iterator[Any]:
        if self._begin_cut is not None:  # nothing was fetched since the resume
            yield from self._resumed()
            return
        with self._opened_again():
            self._iterator = self._source.reopen(self._data_epoch, drawn, self.source_state)
        yield from itertools.islice(self._iterator, 1)  # what follows is asked of the iterator itself

    def state_dict(self) -> dict[str, Any]:
        """The position that the data keeps itself, and the batch ahead; asked for when the run is captured."""
        if self._position or not self._source:
            return dict(self._position)
        if self._held is not NOTHING:
            self.last_batch = {"batch_size": samplers.samples_per_batch(self._data), "tensors": traces(self._held)}
            if self._ranks is not None:
                self.last_batch["number"] = self._held_number
        for line in self._source.unsaved():
            self._data_state.unsaved[f"{self._data_state.name(self._data)}{line}"] = None
        inside = not self._opens_next()
        position = self._source.position() if inside or self._in_turn is None else {}
        if not inside:
            position.pop("common", None)  # the random numbers of an epoch that is over
        if self._in_turn is not None:
            others = self._in_turn.position(self.loader if inside else "")
            position |= {"loaders": others} if others else {}
        if self._written is not None and inside and self._data is not self._written.now():
            position["epoch_data"] = self._data  # another is written, for the next epoch
        # A batch of a class of one's own cannot be encoded; where it can be, it is drawn again with those before it.
        if self._ahead:
            if _has_plain_form(self._ahead):
                position["ahead"] = self._ahead
            elif not self._source.redraws:
                raise _cannot_be_drawn_again(self._ahead[0])
        return position

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep them until the node is set up, which may be in a later validation."""
        self._position = state

    @property
    def batch_index(self) -> int:
        """The number of the current batch within its epoch, from 0; among several ranks, of the last of them."""
        return max(self.epoch_batches - 1, 0)

    @property
    def own_batch_index(self) -> int:
        """That of the batch which this process was given, which step functions get; among ranks it differs."""
        if self._ranks is None or not self.epoch_batches:
            return self.batch_index
        return self.epoch_batches - self.round_batches + self._ranks.rank

    @property
    def epoch_length(self) -> int:
        """Batches that the current epoch will have; 0 where that is not known."""
        return self._epoch_length() or 0

    @derived_clock.of(counter="epoch_batches", restarts="_turns", reach="_epoch_batches_at", fractions="_has_length")
    def epochs(self) -> Fraction:
        """Epochs fetched so far; the fraction of the current one where its length is known."""
        if self.last or not self.opened:
            return Fraction(self.epoch + (self.last and not self.empty))  # an epoch without a batch is none
        length = self._epoch_length()
        if not length:
            return Fraction(self.epoch)
        return self.epoch + Fraction(min(self.epoch_batches, length - 1), length)

    def _epoch_batches_at(self, epochs: Fraction) -> int:
        length = self._epoch_length()
        if self.last or not self.opened or not length:
            return _NEVER  # nothing within this epoch; its end voids this answer
        batches = math.ceil((epochs - self.epoch) * length)
        return batches if batches < length else _NEVER

    def _has_length(self) -> bool:
        if self._in_turn is not None or self.batches_per_epoch is not None:
            return self._epoch_length() is not None
        return self._source.has_length() and not self.rank_local

    def _of_loader(self) -> int:
        """The batches that were fetched of the loader that is read; of one alone, those of the epoch."""
        return self.epoch_batches - self.loader_first

    def _epoch_length(self) -> int | None:
        """The batches of the epoch, over all loaders, as far as it is known."""
        if self.batches_per_epoch is not None:
            return self.batches_per_epoch
        if self._in_turn is None:
            return self._expected_length()
        if self._total is None:
            self._total = self._in_turn.length(self._limit)
        return self._total or None

    def _expected_length(self) -> int | None:
        """The batches of the loader that is read, of which there may be one alone."""
        if self._most is None or self.length is None:
            return self.length
        return min(self._most, self.length)


def _whole(batch_size: Callable[[Any], Any]) -> Callable[[Any], int]:
    """A user's `batch_size`, whose answers are whole numbers."""

    def count(batch: Any) -> int:
        size = batch_size(batch)
        try:
            return operator.index(size)
        except TypeError:
            raise UsageError(
                f"`batch_size` returned a {type(size).__name__}: {size!r}", "it returns how many samples a batch holds"
            ) from None

    return count


def _transferred(transfer: Callable[[Any, Any], Any], device: Any, batch: Any) -> Any:
    moved = transfer(batch, device)
    if moved is None:
        raise UsageError(
            "`transfer` returned nothing", "it returns the batch on the device, as in return batch.to(device)"
        )
    return moved


def _digest(section: Mapping[str, Any]) -> str:
    return state_files.state_digest({"data": section})


def _cannot_be_drawn_again(batch: Any) -> UnsaveableError:
    return encoding.UnsaveableError(
        "the batch fetched ahead",
        f"it is a {type(batch).__name__}, or holds something, that is no plain data; and what a DataLoader without "
        "workers draws while others are drawn cannot be drawn again",
        "leave next_batch.prefetch at false, return plain dicts, tuples, lists and tensors, or use graphtrain.Loader",
    )


def _has_plain_form(value: Any) -> bool:
    try:
        encoding.pack(value, "ahead", encoding.Tensors("ahead"))
    except encoding.UnsaveableError:
        return False
    return True
