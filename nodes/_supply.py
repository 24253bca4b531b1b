"""What a node reads batches of: data, several loaders together, or one loader after the other; alone or among ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, final

from graphtrain.data import NOTHING
from graphtrain.data.loader import Loader
from graphtrain.data.loaders import RankLocal, loaders_of, own_data
from graphtrain.data.samplers import length_of
from graphtrain.data.shares import Windows
from graphtrain.data.source import Indexed, Source, Stateful, source_of
from graphtrain.data.state import DataState
from graphtrain.data.wrapped import Common, Overfit
from graphtrain.errors import DataError
from graphtrain.kind.batch_limit import BatchLimit
from graphtrain.kind.declaration import WrittenBatches
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.data import together as several
    from graphtrain.data.together import InTurn
    from graphtrain.nodes import _division as divisions
    from graphtrain.nodes._division import Division
    from graphtrain.nodes.next_batch import NextBatch
    from graphtrain.program.agreement import Agreement
else:
    several = lazy_import("graphtrain.data.together")
    divisions = lazy_import("graphtrain.nodes._division")


class Surroundings(NamedTuple):
    """What a node that fetches batches is set up with, beside its data.

    Attributes:
        seed, saving, notify, ranks: of the run; `ranks` is None for one process.
        state: what is known of the data of the run.
        windows: those that the batches fill.
        graph_trains: True in a graph that steps an optimizer.
        counts_by_hand: True where a function of the user's counts the samples of a batch.
    """

    seed: int
    saving: bool
    notify: Callable[[str], None]
    ranks: Agreement | None
    state: DataState
    windows: Windows
    graph_trains: bool
    counts_by_hand: bool


@final
class Supply:
    """The data that a node reads now, and what it reads next.

    It is made once; loaders that keep their position, and data that was written, are the same when the node is set up
    again.

    Arguments:
        node: its parameters say how data is read, its progress where it is.

    Attributes:
        run: what the node was set up with.
        data: what is read.
        source: its source, as this rank opens it.
        division: how several ranks divide it.
        in_turn: the loaders of which one is read after the other; None for other data.
        length_in_turn: the batches of all of these; 0 where that is not known.
        limit: the most batches of what is read.
    """

    run: Surroundings
    division: Division
    limit: BatchLimit
    length_in_turn: int = 0

    def __init__(self, node: NextBatch) -> None:
        self._node = node
        self.data: Any = NOTHING
        self.source: Source = Indexed(())  # until its data is written
        self.in_turn: InTurn | None = None
        self._written: WrittenBatches | None = None
        self._loaders: dict[str, Any] = {}
        self._passes: Mapping[str, int] = {}  # how often each loader was begun, of several that are read together
        self._is_common = False  # the epoch was begun by several ranks

    def set_up(self, data: Any, position: Mapping[str, Any], run: Surroundings, *, inside: bool) -> None:
        """Take the data that the node was given, or that of the epoch which is resumed.

        Arguments:
            data: of the slot.
            position: what the node has saved.
            inside: True in the middle of an epoch.

        Raises:
            DataError: it cannot be read as the parameters of the node ask.
        """
        node, self.run = self._node, run
        self.limit = BatchLimit(min((most for most in (node.limit, node.overfit) if most is not None), default=None))
        if node.repeat and not node.opened:
            node.passes, self._passes = 0, {}
        self._written = data if isinstance(data, WrittenBatches) else None
        self._loaders = loaders_of(own_data(data))
        self._is_common = inside and run.ranks is None and bool(node.source_state.get("common"))
        combine: Any = node.combine or ("cycle" if run.graph_trains else "in_turn")
        if self._loaders and (combine != "in_turn" or isinstance(data, RankLocal)):
            self._take_together(data, combine)
        elif self._loaders:
            if self.in_turn is None or self.in_turn.loaders != self._loaders:
                self.in_turn = several.InTurn(self._loaders, self._read)
            self.length_in_turn = self.in_turn.length(self.limit)
            self.in_turn.positions.update(position.get("loaders", {}))
            name = node.loader if inside else self.in_turn.after("")
            self._take(self._loaders.get(name), self.in_turn.source(name))
        elif self._written is None or inside:
            if self._written is not None:
                data = position["epoch_data"] if "epoch_data" in position else self._written.now()
            self._take(data, self._read(data))

    def take_next(self, indices: Any) -> torch.Tensor | None:
        """Take what is opened next: what is written now, or the next loader; the numbers that it selects.

        Raises:
            DataError: nothing is written so far, or `indices` does not fit.
        """
        node = self._node
        if self._written is not None:
            data = self._written.now()
            if data is None:
                raise DataError(
                    "an epoch is opened before anything has written its data",
                    "connect the node that writes it before `next_batch`",
                )
            if data is not self.data:
                self._take(data, self._read(data))
        elif self.in_turn is not None:
            if indices is not None:
                raise DataError(
                    f"`indices` selects samples of one data set, and there are the loaders {', '.join(self._loaders)}",
                    "select the samples of each in its loader, as by a Subset",
                )
            node.loader = self.in_turn.after("" if node.last or not node.opened else node.loader)
            self._is_common, node.rank_local = False, 0  # which the loader before may have been
            self._take(self._loaders[node.loader], self.in_turn.source(node.loader))
            if node.loader in self.in_turn.positions:
                self.source.load_position(self.in_turn.positions.pop(node.loader), inside=False)
        try:
            return self.source.select(indices)
        except DataError as error:
            raise DataError(f"`{self.name}`: {error.message}", error.hint) from None

    @property
    def name(self) -> str:
        """What the data is called."""
        return self.run.state.name(self.data)

    @property
    def parts(self) -> list[Any]:
        """The data that is read, or the loaders that are read together."""
        return [self.data] if self.in_turn is not None else [*self._loaders.values()] or [self.data]

    @property
    def has_length(self) -> bool:
        """False if the length of an epoch is not known."""
        return self.data is NOTHING or all(length_of(part) is not None for part in self.parts)

    def position(self, *, inside: bool) -> dict[str, Any]:
        """Where the data is, as far as it says so itself; what a save cannot hold of it is noted.

        Arguments:
            inside: True in the middle of an epoch.
        """
        for part in self.parts:
            if isinstance(part, Loader):
                self.run.state.unsaved |= {f"{self.run.state.name(part)}{line}": None for line in part.unsaved()}
        position = self.source.position() if inside or self.in_turn is None else {}
        if not inside:
            position.pop("common", None)  # the random numbers of an epoch that is over
        if self.in_turn is not None:
            others = self.in_turn.position(self._node.loader if inside else "")
            position |= {"loaders": others} if others else {}
        if self._written is not None and inside and self.data is not self._written.now():
            position["epoch_data"] = self.data  # another is written, for the next epoch
        return position

    def _take(self, data: Any, source: Source) -> None:
        self.data, self.source, run = data, source, self.run
        if source.replays:
            for each in self.parts:
                run.state.is_redrawn(each)
        if run.ranks is not None:
            self.division = divisions.division_of(self, run.ranks)
            self.source = self.division.source
        elif self._is_common:
            self.source = Common(source, data, run.seed, is_shared=False)
        self.source = self._overfitted(self.source, self.parts)
        self._note_ranks(run.ranks.world_size if run.ranks is not None and isinstance(data, RankLocal) else 0)

    def _overfitted(self, source: Source, loaders: list[Any]) -> Source:
        overfit = self._node.overfit
        return source if overfit is None else Overfit(source, loaders, overfit)

    def _read(self, data: Any) -> Source:
        return source_of(
            own_data(data),
            seed=self.run.seed,
            saving=self.run.saving,
            notify=self.run.notify,
            resume=self._node.resume,
            limit=self.limit.amount,
        )

    def _take_together(self, data: Any, combine: Any) -> None:
        """Read several loaders together."""
        if isinstance(data, RankLocal) or any(isinstance(loader, RankLocal) for loader in self._loaders.values()):
            raise DataError(
                f"rank_local data is read as one loader, and these are several: {', '.join(self._loaders)}",
                "give every rank the same loaders, which then take turns; or combine them in an iterable of your own",
            )
        source = several.Together(
            self._loaders,
            lambda loader: self._overfitted(self._read(loader), [loader]),
            combine,
            self.run.state,
            self._passes,
            self.run.notify,
        )
        self._passes = source.passes
        keeping = [name for name, part in source.sources.items() if isinstance(part, Stateful)]
        if keeping and self.run.saving:
            raise DataError(
                f"the loader `{keeping[0]}` keeps its own position, which is undefined where an epoch ends before it",
                'set next_batch.resume = "replay", if its `__iter__` starts a new epoch; or pass a graphtrain.Loader',
            )
        self._take(data, source)

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
        if ranks and not node.pass_over and not node.rank_local:
            raise DataError(
                "the run is inside an epoch in whose batches ranks took turns, and its data is rank_local now",
                "change the data at the end of an epoch",
            )
        node.rank_local = ranks
