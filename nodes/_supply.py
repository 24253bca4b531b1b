"""What a node reads batches of: data, several loaders together, or one loader after the other; alone or among ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from torch.utils.data import DataLoader, SequentialSampler

from graphtrain.data import NOTHING
from graphtrain.data.common import Common
from graphtrain.data.loaders import RankLocal, loaders_of, own_data
from graphtrain.data.samplers import length_of
from graphtrain.data.shares import WindowCounter, Windows
from graphtrain.data.source import Indexed, Source, Stateful, source_of
from graphtrain.data.state import DataState
from graphtrain.data.together import Together
from graphtrain.errors import DataError
from graphtrain.kind.batch_limit import BatchLimit
from graphtrain.kind.declaration import WrittenBatches
from graphtrain.nodes._division import Division, Surroundings, division_of

if TYPE_CHECKING:
    import torch

    from graphtrain.nodes.next_batch import NextBatch
    from graphtrain.program.agreement import Agreement


@final
class InTurn:
    """The loaders of a mapping, in its order.

    Arguments:
        loaders: by name.

    Attributes:
        sources: of those read so far: one may keep its own position.
        positions: of those that keep their own, loaded from a checkpoint and not taken so far.
    """

    def __init__(self, loaders: Mapping[str, Any]) -> None:
        self.loaders = loaders
        self.sources: dict[str, Source] = {}
        self.positions: dict[str, dict[str, Any]] = {}

    def __getitem__(self, name: str) -> Any:
        """A loader.

        Raises:
            DataError: there is none of that name, as where the run was saved with others.
        """
        if name not in self.loaders:
            raise DataError(
                f"the run was saved in the loader `{name}`, and now there are {', '.join(self.loaders)}",
                f"supply the loader `{name}` too, or resume from a checkpoint that was made elsewhere",
            )
        return self.loaders[name]

    def after(self, name: str) -> str:
        """The name of the loader that follows one; of the first after the last, and after none."""
        names = [*self.loaders]
        return names[(names.index(name) + 1) % len(names)] if name in names else names[0]

    def is_last(self, name: str) -> bool:
        """True if no other follows this one."""
        return [*self.loaders][-1] == name

    def length(self, limit: BatchLimit) -> int:
        """The batches of all of them; 0 where that is not known."""
        total = 0
        for loader in self.loaders.values():
            length = None if isinstance(loader, RankLocal) else length_of(loader)
            if length is None:
                return 0
            most = limit.of(length)
            total += length if most is None else min(most, length)
        return total

    def position(self, current: str) -> dict[str, Any]:
        """What those report that keep their own position, all but the one that is read."""
        reported = {name: source.position() for name, source in self.sources.items() if name != current}
        known = self.positions | {name: position for name, position in reported.items() if position}
        return {name: known[name] for name in (*self.loaders, *known) if name in known}  # in one order, for the digest


@final
class Supply:
    """The data that a node reads now, and what it reads next.

    It is made once; loaders that keep their position, and data that was written, are the same when the node is set up
    again.

    Arguments:
        node: its parameters say how data is read, its progress where it is.

    Attributes:
        data: what is read.
        source: its source, as this rank opens it.
        division: how several ranks divide it.
        is_early: True if batches are fetched a visit early.
        in_turn: the loaders of which one is read after the other; None for other data.
        limit: the most batches of what is read.
        state: what is known of the data of the run.
        windows: those that the batches fill.
        ranks: several; None for one process.
    """

    division: Division
    limit: BatchLimit
    state: DataState
    windows: Windows
    ranks: Agreement | None
    _run: Surroundings

    def __init__(self, node: NextBatch) -> None:
        self._node = node
        self.data: Any = NOTHING
        self.source: Source = Indexed(())  # until its data is written
        self.in_turn: InTurn | None = None
        self.is_early = node.prefetch
        self._written: WrittenBatches | None = None
        self._loaders: dict[str, Any] = {}
        self._passes: Mapping[str, int] = {}  # how often each loader was begun, of several that are read together
        self._total: int | None = None  # batches of all loaders; 0 where that is not known
        self._is_common = False  # the epoch was begun by several ranks

    def set_up(
        self,
        data: Any,
        position: Mapping[str, Any],
        *,
        inside: bool,
        run: Surroundings,
    ) -> None:
        """Take the data that the node was given, or that of the epoch which is resumed.

        Arguments:
            data: of the slot.
            position: what the node has saved.
            inside: True in the middle of an epoch.

        Raises:
            DataError: it cannot be read as the parameters of the node ask.
        """
        node = self._node
        self.state, self.ranks, self.windows, self._run = run.state, run.ranks, run.windows, run
        self._total, self.is_early = None, node.prefetch
        amounts = [amount for amount in (node.limit, node.overfit) if amount is not None]
        self._amount = min(amounts, default=None)
        self.limit = BatchLimit(self._amount)
        if node.batches_per_epoch is not None:
            self.windows.epoch = WindowCounter(
                "", vars(node), "epoch_batches", "batches_per_epoch", lambda: node.batches_per_epoch or 0
            )
        if node.repeat and not node.opened:
            node.passes, self._passes = 0, {}
        self._written = data if isinstance(data, WrittenBatches) else None
        self._loaders = loaders_of(own_data(data))
        self._is_common = inside and run.ranks is None and bool(node.source_state.get("common"))
        combine = node.combine or ("cycle" if run.graph_trains else "in_turn")
        self._refuse_other_epochs(data, combine)
        if self._loaders and (combine != "in_turn" or isinstance(data, RankLocal)):
            self._take_together(data, combine)
        elif self._loaders:
            if self.in_turn is None or self.in_turn.loaders != self._loaders:
                self.in_turn = InTurn(self._loaders)
            self.in_turn.positions.update(position.get("loaders", {}))
            self._take_loader(self.in_turn, self._node.loader if inside else self.in_turn.after(""))
        elif self._written is None:
            self._take(data)
        elif inside:
            self._take(position["epoch_data"] if "epoch_data" in position else self._written.now())

    def take_next(self, indices: Any) -> torch.Tensor | None:
        """Take what is opened next: what is written now, or the next loader; the numbers that it selects.

        Raises:
            DataError: nothing is written so far, or `indices` does not fit.
        """
        if self._written is not None:
            data = self._written.now()
            if data is None:
                raise DataError(
                    "an epoch is opened before anything has written its data",
                    "connect the node that writes it before `next_batch`",
                )
            if data is not self.data:
                self._take(data)
        elif self.in_turn is not None:
            self._take_next_loader(self.in_turn, indices)
        try:
            return self.source.select(indices)
        except DataError as error:
            raise DataError(f"`{self.name}`: {error.message}", error.hint) from None

    @property
    def name(self) -> str:
        """What the data is called."""
        return self.state.name(self.data)

    @property
    def epoch(self) -> int:
        """The epoch as the data is told it: how often it was read before."""
        return self._node.passes - 1 if self._node.overfit is None else 0

    @property
    def parts(self) -> list[Any]:
        """The data that is read, or the loaders that are read together."""
        return [self.data] if self.in_turn is not None else [*self._loaders.values()] or [self.data]

    def position(self, *, inside: bool) -> dict[str, Any]:
        """Where the data is, as far as it says so itself; what a save cannot hold of it is noted.

        Arguments:
            inside: True in the middle of an epoch.
        """
        for line in self.source.unsaved():
            self.state.unsaved[f"{self.name}{line}"] = None
        position = self.source.position() if inside or self.in_turn is None else {}
        if not inside:
            position.pop("common", None)  # the random numbers of an epoch that is over
        if self.in_turn is not None:
            others = self.in_turn.position(self._node.loader if inside else "")
            position |= {"loaders": others} if others else {}
        if self._written is not None and inside and self.data is not self._written.now():
            position["epoch_data"] = self.data  # another is written, for the next epoch
        return position

    def length_of_loaders(self) -> int:
        """The batches of an epoch of loaders in turn; 0 where that is not known."""
        if self._total is None:
            self._total = self.in_turn.length(self.limit) if self.in_turn is not None else 0
        return self._total

    def _take(self, data: Any, source: Source | None = None) -> None:
        self.data, self.source = data, source or self._read(own_data(data))
        # Data that keeps its own position loses it at its end, which several ranks would reach a round early.
        self.is_early = self._node.prefetch and (self.ranks is None or not isinstance(self.source, Stateful))
        if self._node.overfit is not None:
            for each in self.parts:
                sampler = getattr(each, "sampler", None)
                if isinstance(each, DataLoader) and sampler is not None and not isinstance(sampler, SequentialSampler):
                    raise DataError(
                        f"next_batch.overfit = {self._node.overfit}: the data is a {type(each).__name__} with a "
                        f"{type(sampler).__name__}, which gives other batches in every epoch",
                        "leave shuffle=True out; or use graphtrain.Loader, which gives those of its first epoch again",
                    )
        if self.source.replays:
            for each in self.parts:
                self.state.is_redrawn(each)
        if self.ranks is not None:
            self.division = division_of(
                data, self.source, self.ranks, self._run, name=lambda: self.name, limit=self.limit
            )
            self.source = self.division.source
        elif self._is_common:
            self.source = Common(self.source, data, self._run.seed, is_shared=False)
        self._note_ranks(self.ranks.world_size if self.ranks is not None and isinstance(data, RankLocal) else 0)

    def _read(self, data: Any) -> Source:
        return source_of(
            data,
            seed=self._run.seed,
            saving=self._run.saving,
            notify=self._run.notify,
            resume=self._node.resume,
            limit=self._amount if self.limit else None,
        )

    def _take_together(self, data: Any, combine: Any) -> None:
        """Read several loaders together."""
        if isinstance(data, RankLocal) or any(isinstance(loader, RankLocal) for loader in self._loaders.values()):
            raise DataError(
                f"rank_local data is read as one loader, and these are several: {', '.join(self._loaders)}",
                "give every rank the same loaders, which then take turns; or combine them in an iterable of your own",
            )
        is_fixed = self._node.overfit is not None
        source = Together(self._loaders, self._read, combine, self.state, self._passes, is_fixed=is_fixed)
        self._passes = source.passes
        keeping = [name for name, part in source.sources.items() if isinstance(part, Stateful)]
        if keeping and self._run.saving:
            raise DataError(
                f"the loader `{keeping[0]}` keeps its own position, which is undefined where an epoch ends before it",
                'set next_batch.resume = "replay", if its `__iter__` starts a new epoch; or pass a graphtrain.Loader',
            )
        self._take(data, source)

    def _take_loader(self, in_turn: InTurn, name: str) -> None:
        if name not in in_turn.sources:
            in_turn.sources[name] = self._read(own_data(in_turn[name]))
        self._take(in_turn[name], in_turn.sources[name])

    def _take_next_loader(self, in_turn: InTurn, indices: Any) -> None:
        if indices is not None:
            raise DataError(
                f"`indices` selects samples of one data set, and there are the loaders {', '.join(in_turn.loaders)}",
                "select the samples of each in its loader, as by a Subset",
            )
        node = self._node
        node.loader = in_turn.after(node.loader if node.between else "")
        self._is_common, node.rank_local = False, 0  # which the loader before may have been
        self._take_loader(in_turn, node.loader)
        if node.loader in in_turn.positions:
            self.source.load_position(in_turn.positions.pop(node.loader), inside=False)

    def _note_ranks(self, ranks: int) -> None:
        """Note among how many ranks the data divides itself: where that has changed, its position is not defined."""
        node = self._node
        if node.opened and node.rank_local and ranks != node.rank_local:
            raise DataError(
                f"the data of the run is rank_local: each of {node.rank_local} ranks has its own, and what those have "
                f"read cannot be divided among {'others' if ranks else 'ranks that all read one data'}",
                f"resume with {node.rank_local} processes and rank_local data; a graphtrain.Loader can be resumed with "
                "any number of them",
            )
        if ranks and not node.opens_next() and not node.rank_local:
            raise DataError(
                "the run is inside an epoch in whose batches ranks took turns, and its data is rank_local now",
                "change the data at the end of an epoch",
            )
        node.rank_local = ranks

    def _refuse_other_epochs(self, data: Any, combine: str) -> None:
        """Raise where an epoch cannot have a number of batches of its own."""
        if self._node.batches_per_epoch is None:
            return
        setting = f"next_batch.batches_per_epoch = {self._node.batches_per_epoch}"
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
