"""The state of data besides its position, such as a cache or a counter, and the comparisons after a resume."""

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
        snapshot: the objects that were reachable when the run began; None before that.
        comparisons: called once everything is restored; each returns what differs, or an empty text.
    """

    def __init__(self) -> None:
        self.snapshot: StateSnapshot | None = None
        self.comparisons: list[Callable[[], str]] = []

    def name(self, data: Any) -> str:
        """The name of data: the path under which it was reached."""
        reached = self.snapshot.reachable.find(data) if self.snapshot is not None else None
        return reached.path if reached is not None else "the data"

    def _followed(self, data: Any) -> tuple[StateSnapshot, str] | None:
        """The snapshot, and the name of data in it; None if the state of this data is not followed."""
        name = self.name(data)
        return (self.snapshot, name) if self.snapshot is not None and name in self.snapshot.of_data else None

    def is_known(self, data: Any) -> bool:
        """True for data whose state is followed: not for data that came later, or that keeps its own position."""
        return self._followed(data) is not None

    def note_redrawn(self, data: Any) -> None:
        """Note that a resume draws all batches of an epoch again, so that iterators and the like are recreated."""
        if (followed := self._followed(data)) is not None:
            snapshot, name = followed
            snapshot.redrawn |= {id(entry.value) for entry in snapshot.of_data[name]}

    def changed(self, data: Any) -> Mapping[str, Any]:
        """The changes in data since the run began; empty if there are none."""
        return changes_since(*followed).section if (followed := self._followed(data)) is not None else {}

    def digest(self, data: Any) -> str:
        """A digest of the changes in data since the run began."""
        return state_digest({"data": self.changed(data)})

    def restore(self, data: Any, section: Mapping[str, Any]) -> None:
        """Restore data from what `changed` returned, which is copied."""
        if (followed := self._followed(data)) is not None:
            snapshot, name = followed
            restore_changes(snapshot, copy.deepcopy(section), name)  # the section may be needed again

    def differences(self) -> list[str]:
        """The differences that the comparisons report; each comparison is made once."""
        comparisons, self.comparisons = self.comparisons, []
        return [line for compare in comparisons if (line := compare())]


@final
class WithDataState(Source):
    """A source whose data gets, when an epoch is reopened, the state that it had when the epoch was opened."""

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
