"""An output of a notebook cell that is updated while a run is running."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from html import escape
from typing import Any, final

from graphtrain.report.display.panel import Panel, done, facts, host_time, metrics, pace, place, plain_text
from graphtrain.report.numbers import share
from graphtrain.report.snapshot import Display, Snapshot

_STYLE = "font-family: ui-monospace, monospace; font-size: 90%; line-height: 1.6"
_FAINT = "opacity: 0.65"


@final
class Notebook(Display):
    """Shows the run as HTML below the cell, in the colours of the notebook's own theme."""

    interval_seconds = 0.5

    def __init__(self) -> None:
        self._output: Any = None

    def begin(self, snapshot: Snapshot | None = None) -> None:
        """The next `show` makes an output below the cell that runs."""
        self._output = None

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
    """A snapshot as a displayable value; consoles of a kernel, without HTML, get the panel as text."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def _repr_html_(self) -> str:
        return as_html(self._snapshot)

    def __repr__(self) -> str:
        return plain_text(Panel(self._snapshot))


def as_html(snapshot: Snapshot) -> str:
    """A snapshot as HTML that inherits its colours; text is escaped.

    >>> print(as_html(Snapshot("stopped", "fit", "step", step=7, metrics={"<b>": 0.5})))
    <div style="font-family: ui-monospace, monospace; font-size: 90%; line-height: 1.6">
    <div>step 7 · stopped</div>
    <div><span style="opacity: 0.65">&lt;b&gt;</span> 0.5</div>
    <div>0 s elapsed</div>
    </div>
    """
    first = escape(" · ".join(filter(None, (*facts(snapshot), place(snapshot)))))
    part, shares = done(snapshot), host_time(snapshot)
    if part is not None:
        bar = f'<progress value="{part:.4f}" max="1" style="width: 16em; vertical-align: middle"></progress>'
        first = f"{bar} {escape(share(part))} &nbsp; {first}"
    named = (f'<span style="{_FAINT}">{escape(name)}</span> {escape(value)}' for name, value in metrics(snapshot))
    rows = [first, _spaced(named), _spaced(map(escape, pace(snapshot)))]
    if shares:
        rows.append(f'<span style="{_FAINT}">time: {_spaced(map(escape, shares))}</span>')
    return "\n".join([f'<div style="{_STYLE}">', *(f"<div>{row}</div>" for row in rows if row), "</div>"])


def _spaced(pieces: Iterable[str]) -> str:
    return " &nbsp; ".join(pieces)
