"""An output of a notebook cell that is updated while a run is running."""

from __future__ import annotations

import importlib
from io import StringIO
from typing import Any, final

from rich.console import Console

from graphtrain.report.display.panel import Panel, plain_text
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
        content = _Output(snapshot)
        if self._output is None:
            self._output = importlib.import_module("IPython.display").display(content, display_id=True)
        else:
            self._output.update(content)

    def end(self, snapshot: Snapshot) -> None:
        """Update the output a last time, and leave it."""
        self.show(snapshot)


class _Output:
    """The panel as a displayable value: HTML, and for consoles of a kernel text."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._panel = Panel(snapshot)

    def _repr_html_(self) -> str:
        console = Console(file=StringIO(), width=100, record=True, force_jupyter=False, highlight=False)
        console.print(self._panel)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    def __repr__(self) -> str:
        return plain_text(self._panel)
