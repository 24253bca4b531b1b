"""Fetching the next batch, with an exact position in the data."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.data.batch import NESTS, NOTHING, as_tuples, count_samples
from graphtrain.errors import DataError, UsageError
from graphtrain.kind import Slot, derived_clock, node, progress
from graphtrain.kind.parameter import Above, Below
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    from graphtrain.data import shares
    from graphtrain.data import state as states
    from graphtrain.data.state import DataState
    from graphtrain.nodes import _reading as readings
    from graphtrain.nodes._reading import Reading
    from graphtrain.program.agreement import Agreement
else:
    shares = lazy_import("graphtrain.data.shares")
    states = lazy_import("graphtrain.data.state")
    readings = lazy_import("graphtrain.nodes._reading")

_NEVER = 2**62


@node(
    synchronises=True,
    writes=("batch", "samples"),
    family="data",
    step_inputs={
        "epoch": "epoch",
        "batch_index": "own_batch_index",
        "batch_idx": "own_batch_index",
        "loader": "loader",
        "loader_index": "loader_index",
        "dataloader_idx": "loader_index",
        "is_last": "last",
    },
)
class NextBatch:
    """Fetch the next batch of `train_data`; after the last one of an epoch, the next visit begins a new epoch.

    With a mapping of loaders, a graph that trains gets mappings with a batch of each, and shorter loaders start over;
    an evaluation reads one loader after the other, and `limit` applies to each.

    Data without a length is read ahead by one batch, to know which batch is the last. Data that yields fewer batches
    than its `len()` ends its epoch early (`exhausted`); data that yields more is read to its end.

    The slot `indices`, which a node may write, selects the samples of the next epoch: indices into the dataset of a
    `graphtrain.Loader`, which may shuffle them, or into a list of batches. None: all of the data.

    With several ranks, a visit fetches one batch for each rank, or as many as the epoch and the open window still need,
    and counts them all; a rank without one gets None. From a `graphtrain.Loader`, each rank loads only its own batches.

    Arguments:
        limit: maximum number of batches per epoch, or a fraction below 1 of the batches of the data, such as 0.25.
            Default: all.
        overfit: use the same batches in every epoch, this many, to check that a model can memorize them: of a
            `graphtrain.Loader`, those of its first epoch. Default: none, all of the data.
        repeat: True, in a nested graph, starts from the first epoch of the data each time the graph begins. Default:
            False, the data continues with its next epoch.

    Writes:
        batch: the batch on the device, by ``transfer(batch, device)`` if there is one; None if the data has ended.
        samples: in the batch: the first dimension of its first tensor, or ``batch_size(batch)`` if there is one.

    Guard fields:
        epoch: index of the current epoch, from 0.             epoch_batches: batches fetched in it, by all ranks.
        batches, samples: fetched since the start.             last: the batch fetched is the last of its epoch.
        exhausted: the data ended without a batch.             empty: the epoch gave no batch at all.
        epoch_length: number of batches in the current epoch; 0 if unknown.
        batch_index: index of the last batch in its epoch, from 0; own_batch_index: that of the batch of this process.
        ended: a step function has requested the end of the epoch, which is not closed yet.
        epochs: epochs fetched, as an exact fraction if the length is known.
        passes: passes through the data begun, over all runs of a nested graph unless `repeat` is set.
        loader: name of the current loader, if several are read in turn; loader_index: its index.
        seconds: spent training, over all sessions of the run, without the time while it was stopped.

    Raises:
        TypeError: `batch_size` did not return an integer.
        DataError: a batch is None, `indices` are not valid indices, or an epoch begins before its data is written.
        RanksDivergedError: the data differs between ranks.
        UnsaveableError: a checkpoint is due, and the batch read ahead can neither be saved nor drawn again.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("next_batch", limit=100)
    >>> graph.check()
    []
    """

    limit: Annotated[int, Above(0)] | Annotated[float, Above(0), Below(1)] | None = None
    overfit: Annotated[int, Above(0)] | None = None
    repeat: bool = False

    epoch: int = progress(0)
    batches: int = progress(0)
    epoch_batches: int = progress(0, restarts="epoch", target="epoch_length")
    samples: int = progress(0)
    last: bool = progress(False)
    exhausted: bool = progress(False)
    empty: bool = progress(False)
    seconds: float = progress(0.0, in_digest=False)
    ended: bool = progress(False)
    opened: bool = progress(False)
    length: int | None = progress(None)
    fetched_ahead: int = progress(0)
    round_batches: int = progress(1, in_digest=False)  # of several ranks, at the last visit
    loader: str = progress("")
    # A pass goes through the data, or through one of several loaders of an epoch.
    pass_over: bool = progress(True)  # no pass is open: the next visit opens the data, or another loader
    pass_first: int = progress(0)  # the batches of the epoch before the open pass
    passes: int = progress(0, stays=True)
    source_state: dict[str, Any] = progress({})
    last_batch: dict[str, Any] = progress({}, in_digest=False)

    _reading: Reading | None  # None before the node is set up
    _clock: Callable[[], float]
    _mark: float
    _count: Callable[[Any], int]
    _ranks: Agreement | None
    _position: dict[str, Any]  # loaded from a checkpoint, until the data takes it

    def __init__(self) -> None:
        self._ranks = self._reading = None
        self._position = {}
        self.turns = 0  # how often a pass was opened or closed
        self.certain = 0  # up to this batch of the epoch another one is certain, and none is fetched ahead

    def setup(
        self,
        train_data: Annotated[Any, Slot("batches", "written batches")],
        seed: int,
        device: Any,
        saving: bool,
        notify: Callable[[str], None],
        batch_size: Callable[[Any], int] | None = None,
        transfer: Callable[[Any, Any], Any] | None = None,
        running_seconds: Callable[[], float] | None = None,
        data_state: DataState | None = None,
        ranks: Agreement | None = None,
        windows: Sequence[Callable[[], int]] = (),
        graph_trains: bool = True,
    ) -> None:
        self._ranks = ranks
        if self.repeat and not self.opened:
            self.passes = 0
        self._reading = reading = self._reading or readings.Reading(self)
        state, by_hand = data_state or states.DataState(), batch_size is not None
        run = readings.DataOfRun(seed, saving, notify, ranks, state, windows, graph_trains, by_hand)
        reading.set_up(train_data, run, device, transfer)
        self._count = count_samples if batch_size is None else lambda batch: operator.index(batch_size(batch))
        self._clock = running_seconds or time.monotonic
        self._mark = self._clock()
        position, self._position = self._position, {}
        reading.load(position)
        if self.ended and not self.pass_over:
            reading.end()

    def __call__(self, indices: Any = None) -> tuple[Any, int]:
        if self._ranks is not None:
            return self._take_part(self._ranks, indices)
        reading: Any = self._reading
        now = self._clock()
        self.seconds += now - self._mark
        self._mark = now
        while True:
            if self.pass_over:
                reading.open(indices)
            batch = reading.next()
            if batch is not NOTHING:
                break
            reading.close()
            self.exhausted = True
            if self.last:
                return None, 0
        reading.last_fetched = as_tuples(batch) if type(batch) in NESTS else batch  # 0.05 us for a tensor
        self.epoch_batches += 1
        self.batches += 1
        if self.epoch_batches >= self.certain and not reading.has_another():
            reading.close()
        moved = batch if reading.move is None else reading.move(batch)
        if moved is None:
            raise self._gave_none(reading.name)
        count = self._count(batch)
        self.samples += count
        return moved, count

    def _take_part(self, ranks: Agreement, indices: Any) -> tuple[Any, int]:
        """Take the batch of this rank in the next round of all of them."""
        reading: Any = self._reading
        while True:
            if opens := self.pass_over:
                reading.open(indices)
            elif not (reading.run.counts_by_hand and isinstance(reading.batches, shares.RankBatches)):
                ranks.before_batch()
            drawn = readings.Round(NOTHING, (), 0, True, NOTHING)
            if not self.ended:
                drawn = reading.next_round(ranks, self._count, opens=opens)
            now = self._clock()
            self.seconds += now - self._mark
            self._mark = now
            self.round_batches = len(drawn.counts)
            self.epoch_batches += len(drawn.counts)
            self.batches += len(drawn.counts)
            self.samples += sum(drawn.counts)
            self.exhausted = not drawn.counts
            looks = drawn.is_last is None and self.epoch_batches >= self.certain
            if drawn.is_last or not drawn.counts or (looks and not reading.has_another()):
                reading.close()
            if drawn.counts or self.last:
                break
        has_batch = drawn.batch is not NOTHING
        batch = drawn.batch if has_batch else drawn.stand_in
        if batch is NOTHING:
            return None, 0
        if has_batch:
            reading.last_fetched, reading.last_number = as_tuples(batch), drawn.number
        moved = batch if reading.move is None else reading.move(batch)
        if moved is None:
            raise self._gave_none(reading.name)
        return moved, drawn.counts[ranks.rank] if has_batch else 0

    def _gave_none(self, name: str) -> DataError:
        """The error for a batch that is None, as from a `collate_fn` or a `transfer` without `return`."""
        return DataError(
            f"{name}: batch {self.epoch_batches} of epoch {self.epoch + 1} is None",
            "let `collate_fn`, and `transfer` if there is one, return a batch; leave samples out in the data set",
        )

    def end_epoch(self) -> None:
        """End the epoch before its next batch, if it has one: a step function has returned END_EPOCH."""
        if not self.opened or self.last or not self.epoch_batches:
            return
        self.ended = True
        if self._reading is not None:
            self._reading.close() if self.pass_over else self._reading.end()  # a loader may have ended with this batch

    def release(self) -> None:
        """End the worker processes of the data; if another batch is fetched, the epoch is reopened where it was."""
        if self._reading is not None and not self.pass_over:
            self._reading.release()

    def state_dict(self) -> dict[str, Any]:
        """The positions that data reports itself, and the batches ahead."""
        if self._position or self._reading is None:
            return dict(self._position)
        return self._reading.position()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the state until the node is set up, which may be in a later validation."""
        self._position = state

    @property
    def batch_index(self) -> int:
        """The index of the current batch in its epoch, from 0; with several ranks, that of the last rank's batch."""
        return max(self.epoch_batches - 1, 0)

    @property
    def own_batch_index(self) -> int:
        """The index of the batch of this process, which step functions get; it differs between ranks."""
        if self._ranks is None or not self.epoch_batches:
            return self.batch_index
        return self.epoch_batches - self.round_batches + self._ranks.rank

    @property
    def loader_index(self) -> int:
        """The index of the current loader in the mapping, from 0; 0 if there is only one."""
        return [*self._reading.loaders].index(self.loader) if self._reading is not None and self.loader else 0

    @property
    def epoch_length(self) -> int:
        """The number of batches in the current epoch; 0 if unknown."""
        return (self._reading.length_in_turn if self._reading is not None else 0) or self.length or 0

    @derived_clock(counter="epoch_batches", restarts="turns", reach="_epoch_batches_at")
    def epochs(self) -> Fraction:
        """Epochs fetched so far, with the fraction of the current one if its length is known."""
        if self.last or not self.opened:
            return Fraction(self.epoch + (self.last and not self.empty))  # an epoch without a batch is none
        if not (length := self.epoch_length):
            return Fraction(self.epoch)
        return self.epoch + Fraction(min(self.epoch_batches, length - 1), length)

    def _epoch_batches_at(self, epochs: Fraction) -> int:
        if epochs.denominator != 1 and self._reading is not None and not self._reading.has_length:
            raise UsageError(
                f"`{self._reading.name}` has no length, so a fraction of an epoch cannot be counted",
                'count batches or steps, as in "100 batches", or whole epochs; or give the data a `__len__`',
            )
        length = self.epoch_length
        if self.last or not self.opened or not length:
            return _NEVER  # not within this epoch, at whose end this is computed again
        batches = math.ceil((epochs - self.epoch) * length)
        return batches if batches < length else _NEVER
