"""What data holds beside its position, such as a cache or a counter; and what of its batches cannot be promised."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from graphtrain.data.samplers import drawn_from
from graphtrain.state.changes import changes
from graphtrain.state.codec import StateReader
from graphtrain.state.generators import RandomAside
from graphtrain.state.restore import restore
from graphtrain.state.snapshot import StateSnapshot
from graphtrain.storage.state_files import state_digest


@final
class DataState:
    """The state of the data of a run, and what nodes report about it.

    Attributes:
        snapshot: what was reachable when the run began; None before, and where nothing of it is known.
        saved: what a checkpoint has of all that is reachable, while nodes are set up from it.
        comparisons: called once everything is restored; each returns what is not as it was, empty for nothing.
    """

    def __init__(self) -> None:
        self.snapshot: StateSnapshot | None = None
        self.saved: Mapping[str, Any] = {}
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
        return changes(*followed).section if (followed := self._followed(data)) is not None else {}

    def digest(self, data: Any) -> str:
        """A digest of what has changed of data."""
        return state_digest({"data": self.changed(data)})

    def restore(self, data: Any, section: Mapping[str, Any] | None) -> None:
        """Put data in the state of a copy of what `changed` returned; None: in that of the checkpoint."""
        if (followed := self._followed(data)) is None or (section is None and not self.saved):
            return  # within a process, data for which None was saved is as it was
        snapshot, name = followed
        reader = None
        if section is None:
            section = {one.path: self.saved[one.path] for one in snapshot.entries(name) if one.path in self.saved}
            reader = StateReader(snapshot, self.saved)
        restore(snapshot, copy.deepcopy(section), name, reader)  # to which it may be restored again

    @contextmanager
    def aside(self, parts: Iterable[Any]) -> Iterator[None]:
        """A span after which these data, and the random generators, are in the state that they are in now."""
        parts = list(parts)
        with RandomAside([generator for part in parts for generator in drawn_from(part)]):
            now = [copy.deepcopy(self.changed(part)) for part in parts]
            try:
                yield
            finally:
                for part, captured in zip(parts, now, strict=True):
                    self.restore(part, captured)

    def not_as_before(self) -> list[str]:
        """What the comparisons have found; each is made once."""
        comparisons, self.comparisons, self.saved = self.comparisons, [], {}
        return [line for compare in comparisons if (line := compare())]
