"""`graphtrain diff`."""

from __future__ import annotations

import os
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from graphtrain.command.output import escaped, notify
from graphtrain.command.settings import renamings
from graphtrain.graph import Graph
from graphtrain.graph.difference import Change, Difference
from graphtrain.graph.registry import find_graph
from graphtrain.graph.renaming import Renaming
from graphtrain.storage.saved_graph import holds_a_graph, saved_graph
from graphtrain.viz.render import render

_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def diff_command(before: str, after: str, output: Path | None, rename: list[str], *, exit_code: bool = False) -> int:
    """Print what differs between two graphs, and draw it; the exit code."""
    former, now = _graph(before), _graph(after)
    difference = Renaming(renamings(rename), former, now).graph(former).diff(now)
    console = Console(highlight=False)
    count = len(difference.changes)
    told = f"{count} difference{'s' if count > 1 else ''}" if difference else "no difference"
    if difference and not difference.matters:
        told += ", none in what the graph does"
    console.print(f"[bold]{escaped(before)} -> {escaped(after)}[/bold]: {told}", soft_wrap=True)
    if difference:
        console.print(_table(difference))
    for old, new in difference.renamings:
        told = f"`{old}` and `{new}` are alike: a renaming? --rename {old}={new}"
        console.print(escaped(told), soft_wrap=True, style="dim")
    if output is not None:
        typer.echo(f"wrote {render(difference, output)}")
    return int(exit_code and bool(difference))


def _graph(source: str) -> Graph:
    """The graph of a name, a file, a run directory or a checkpoint; what is passed over in that is said."""
    if find_graph(source) is None and os.path.isdir(source) and holds_a_graph(Path(source)):
        return saved_graph(source, notify)
    return Graph.load(source)


def _table(difference: Difference) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "what", "where", "before", "after"):
        table.add_column(column, overflow="fold")
    for one in difference.changes:
        before, after = one.values
        cells = (_SIGNS[one.how], one.what, _where(one), before, after)
        table.add_row(*(escaped(text) for text in cells), style=_STYLES[one.how])
    return table


def _where(change: Change) -> str:
    return change.path if change.what not in ("start", "outputs", "optional", "allow", "name") else change.inside
