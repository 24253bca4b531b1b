"""What data holds beside its position, such as a cache or a counter; and what of its batches cannot be promised."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, final

from graphtrain.data.source import Opened, Source
from graphtrain.state.changes import changes_since, restore_changes
from graphtrain.state.snapshot import StateSnapshot
from graphtrain.storage.state_files import state_digest


@final
class DataState:
    """The state of the data of a run, and what nodes report about it.

    Attributes:
        snapshot: what was reachable when the run began; None before, and where nothing of it is known.
        comparisons: called once everything is restored; each returns what is not as it was, empty for nothing.
    """

    def __init__(self) -> None:
        self.snapshot: StateSnapshot | None = None
        self.comparisons: list[Callable[[], str]] = []

    def name(self, data: Any) -> str:
        """What data is called: the path under which it was reached."""
        reached = self.snapshot.reachable.find(data) if self.snapshot is not None else None
        return reached.path if reached is not None else "the data"

    def _followed(self, data: Any) -> tuple[StateSnapshot, str] | None:
        """What was reachable, and the name under which data is followed in it; None where its state is not followed."""
        name = self.name(data)
        return (self.snapshot, name) if self.snapshot is not None and name in self.snapshot.of_data else None

    def is_known(self, data: Any) -> bool:
        """True for data whose state is followed: not for what came later, nor for what keeps its position itself."""
        return self._followed(data) is not None

    def note_redrawn(self, data: Any) -> None:
        """Note that a resume draws all batches of an epoch again, with what data makes for it, such as iterators."""
        if (followed := self._followed(data)) is not None:
            snapshot, name = followed
            snapshot.redrawn |= {id(entry.value) for entry in snapshot.of_data[name]}

    def changed(self, data: Any) -> Mapping[str, Any]:
        """What has changed of data since the run began; empty for nothing."""
        return changes_since(*followed).section if (followed := self._followed(data)) is not None else {}

    def digest(self, data: Any) -> str:
        """A digest of what has changed of data."""
        return state_digest({"data": self.changed(data)})

    def restore(self, data: Any, section: Mapping[str, Any]) -> None:
        """Put data in the state of a copy of what `changed` returned."""
        if (followed := self._followed(data)) is not None:
            snapshot, name = followed
            restore_changes(snapshot, copy.deepcopy(section), name)  # to which it may be restored again

    def not_as_before(self) -> list[str]:
        """What the comparisons have found; each is made once."""
        comparisons, self.comparisons = self.comparisons, []
        return [line for compare in comparisons if (line := compare())]


@final
class AsOpened(Source):
    """A source whose data is reopened as it was, beside its position, when the epoch was opened."""

    def __init__(self, source: Source, state: DataState) -> None:
        self.source, self.data, self._state = source, source.data, state
        self.replays, self.redraws, self.takes_indices = source.replays, source.redraws, source.takes_indices

    def open(self, epoch: int, indices: Any = None) -> Opened:
        changed = copy.deepcopy(self._state.changed(self.data))  # before the data is told the epoch
        opened = self.source.open(epoch, indices)
        if changed:
            opened.state["data"] = changed
        return opened

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        self._state.restore(self.data, state.get("data", {}))
        return self.source.reopen(epoch, drawn, state)

    def position(self) -> dict[str, Any]:
        return self.source.position()

    def load_position(self, position: dict[str, Any]) -> str:
        return self.source.load_position(position)
