"""`graphtrain diff`."""

from __future__ import annotations

import os
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from graphtrain.command.output import escaped, notify
from graphtrain.command.script_graph import load_graph
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
    """Print and draw the difference between two graphs; returns the exit code."""
    graph, other = _graph(before), _graph(after)
    difference = Renaming(renamings(rename), graph, other).graph(graph).diff(other)
    console = Console(highlight=False)
    count = len(difference.changes)
    summary = f"{count} difference{'s' if count > 1 else ''}" if difference else "no difference"
    if difference and not difference.matters:
        summary += ", none of which changes what the graph does"
    console.print(f"[bold]{escaped(before)} -> {escaped(after)}[/bold]: {summary}", soft_wrap=True)
    if difference:
        console.print(_table(difference))
    for old, new in difference.renamings:
        suggestion = f"`{old}` and `{new}` are alike: a renaming? --rename {old}={new}"
        console.print(escaped(suggestion), soft_wrap=True, style="dim")
    if output is not None:
        typer.echo(f"wrote {render(difference, output)}")
    return int(exit_code and bool(difference))


def _graph(source: str) -> Graph:
    """The graph of a name, a file, a run directory or a checkpoint; skipped checkpoints are reported."""
    if find_graph(source) is None and os.path.isdir(source) and holds_a_graph(Path(source)):
        return saved_graph(source, notify)
    return load_graph(source)


def _table(difference: Difference) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "what", "where", "before", "after"):
        table.add_column(column, overflow="fold")
    for change in difference.changes:
        before, after = change.values
        cells = (_SIGNS[change.how], change.what, _where(change), before, after)
        table.add_row(*(escaped(text) for text in cells), style=_STYLES[change.how])
    return table


def _where(change: Change) -> str:
    return change.path if change.what not in ("start", "outputs", "optional", "allow", "name") else change.inside
