"""A source around another source: data as it was when an epoch was opened."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, final

from graphtrain.data.samplers import samples_per_batch
from graphtrain.data.source import Opened, Source
from graphtrain.data.state import DataState
from graphtrain.errors import DataError
from graphtrain.storage.state_files import state_digest


@final
class AsOpened(Source):
    """A source whose data is reopened as it was, beside its position, when the epoch was opened."""

    def __init__(self, source: Source, data: Any, state: DataState) -> None:
        self.source, self.replays, self.redraws = source, source.replays, source.redraws
        self._data, self._state = data, state
        self._changed: Mapping[str, Any] = {}  # when the epoch was opened
        self._digest = ""
        self._opened: dict[str, Any] = {}  # the state of the epoch

    def open(self, epoch: int, indices: Any = None) -> Opened:
        self._note()  # before the data is told the epoch
        opened = self.source.open(epoch, indices)
        opened.state["batch_size"] = samples_per_batch(self._data)
        self._opened = opened.state
        return opened

    def _note(self) -> None:
        self._changed = copy.deepcopy(self._state.changed(self._data))
        self._digest = state_digest({"data": self._changed}) if self._changed else ""

    def reopen(self, epoch: int, drawn: int, state: dict[str, Any]) -> Any:
        before, now = state.get("batch_size"), samples_per_batch(self._data)
        if before and now and before != now:
            raise DataError(
                f"{self._state.name(self._data)} has a batch size of {now}, and the run is inside an epoch that was "
                f"begun with {before}",
                f"end this epoch with batches of {before}; or resume from a checkpoint between two epochs",
            )
        if state is self._opened:
            self._state.restore(self._data, self._changed)
        else:
            self._state.restore(self._data, state.get("data", {}))
            self._note()
        self._opened = state
        return self.source.reopen(epoch, drawn, state)

    def position(self) -> dict[str, Any]:
        if self._changed:  # what has not changed since, such as a cache that is full, is saved once
            self._opened["data"] = None if self._state.digest(self._data) == self._digest else self._changed
        return self.source.position()

    def load_position(self, position: dict[str, Any]) -> None:
        self.source.load_position(position)
