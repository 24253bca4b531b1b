"""An output of a notebook cell that is updated while a run is running."""

from __future__ import annotations

import importlib
from typing import Any, final

from graphtrain.report.display.panel import Panel
from graphtrain.report.snapshot import Display, Snapshot


@final
class Notebook(Display):
    """Shows the panel of the run below the cell, in the colours of the notebook's own theme."""

    interval_seconds = 0.5

    def begin(self, snapshot: Snapshot | None = None) -> None:
        """The next `show` makes an output below the cell that runs."""
        self._output: Any = None

    def show(self, snapshot: Snapshot) -> None:
        """Update the output."""
        content = Panel(snapshot)
        if self._output is None:
            self._output = importlib.import_module("IPython.display").display(content, display_id=True)
        else:
            self._output.update(content)

    def end(self, snapshot: Snapshot) -> None:
        """Update the output a last time, and leave it."""
        self.show(snapshot)
