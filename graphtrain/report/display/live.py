"""The panel at the bottom of a terminal while a run is running."""

from __future__ import annotations

import sys
from io import BytesIO, TextIOWrapper
from typing import Any, cast, final

from rich.console import Console, ConsoleDimensions

from graphtrain.report.display.footer import Footer, can_be_drawn_on
from graphtrain.report.display.panel import Panel
from graphtrain.report.snapshot import Display, Snapshot


@final
class Live(Display):
    """Draws the panel on standard error, and redraws it in `show`; other output appears above it.

    If standard error is not a terminal that can move its cursor, nothing is shown.
    """

    def __init__(self) -> None:
        self._footer = Footer()

    def begin(self, snapshot: Snapshot | None = None) -> None:
        """Take the place at the bottom."""
        if self._footer.is_open or not can_be_drawn_on(sys.stderr):
            return
        model = Console(file=sys.stderr, force_jupyter=False)
        self._console = Console(  # draws for the terminal, but into memory: only the footer writes to the terminal
            file=TextIOWrapper(BytesIO(), model.encoding),  # by its encoding rich chooses characters
            color_system=cast(Any, model.color_system),
            no_color=model.no_color,
            force_terminal=True,
            force_jupyter=False,
            highlight=False,
            legacy_windows=False,
        )
        self._footer.open(sys.stderr)

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the panel; about 0.3 ms."""
        if not self._footer.is_open:
            return
        columns, lines = self._footer.size
        # After a line that fills the terminal, the place of the cursor depends on the terminal.
        self._console.size = ConsoleDimensions(max(columns - 1, 1), lines)
        with self._console.capture() as drawn:
            self._console.print(Panel(snapshot))
        self._footer.draw(drawn.get().splitlines())

    def end(self, snapshot: Snapshot) -> None:
        """Draw the panel once more, and leave it."""
        try:
            self.show(snapshot)
        finally:
            self._footer.close()
