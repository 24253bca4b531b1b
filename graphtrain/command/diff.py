"""`graphtrain diff`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from graphtrain.command.output import escaped, notify
from graphtrain.command.run_difference import ChangedValue, SavedRun, sections
from graphtrain.command.script_graph import load_graph
from graphtrain.command.settings import renamings
from graphtrain.graph import Graph
from graphtrain.graph.difference import Change, Difference
from graphtrain.graph.registry import find_graph
from graphtrain.graph.renaming import Renaming
from graphtrain.storage.saved_graph import graph_of, holds_a_graph, saved_manifest
from graphtrain.viz.render import render

_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def diff_command(
    before: str,
    after: str,
    output: Path | None,
    rename: list[str],
    *,
    exit_code: bool = False,
    overlays: Sequence[str] = (),
    contained: bool = False,
) -> int:
    """Print the difference between two graphs, or between two runs; draw that of the graphs. Returns the exit code.

    Arguments:
        overlays: overlays that are added to the second graph. Default: none.
    """
    (graph, run), (other, other_run) = _read(before, contained), _read(after, contained)
    if overlays:
        other = load_graph(other, overlays=overlays, contained=contained)
    difference = Renaming(renamings(rename), graph, other).graph(graph).diff(other)
    rows_of_runs = sections(run, other_run) if run is not None and other_run is not None else {}
    console = Console(highlight=False)
    count = len(difference.changes) + sum(map(len, rows_of_runs.values()))
    summary = f"{count} difference{'s' if count > 1 else ''}" if count else "no difference"
    if difference and not difference.matters and count == len(difference.changes):
        summary += ", none of which changes what the graph does"
    console.print(f"[bold]{escaped(before)} -> {escaped(after)}[/bold]: {summary}", soft_wrap=True)
    if difference:
        if rows_of_runs:
            console.print("\n[bold]graph[/bold]")
        console.print(_table(difference))
    for old, new in difference.renamings:
        suggestion = f"`{old}` and `{new}` are alike: a renaming? --rename {old}={new}"
        console.print(escaped(suggestion), soft_wrap=True, style="dim")
    for title, rows in rows_of_runs.items():
        if rows:
            console.print(f"\n[bold]{title}[/bold]")
            console.print(_table_of_rows(rows))
    same = [title for title, rows in {"graph": difference.changes, **rows_of_runs}.items() if not rows]
    if rows_of_runs and count and same:
        console.print(f"\nthe same: {', '.join(same)}", soft_wrap=True)
    if output is not None:
        typer.echo(f"wrote {render(difference, output)}")
    return int(exit_code and bool(count))


def _read(source: str, contained: bool) -> tuple[Graph, SavedRun | None]:
    """The graph of a name, a file, a script, a run directory or a checkpoint; and the run, of the latter two.

    Checkpoints that are skipped are reported.
    """
    if find_graph(source) is None and holds_a_graph(Path(source)):
        checkpoint, manifest = saved_manifest(source, notify, contained=contained)
        return graph_of(checkpoint, manifest), SavedRun.of(checkpoint, manifest)
    return load_graph(source, contained=contained), None


def _table_of_rows(rows: list[ChangedValue]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "what", "before", "after"):
        table.add_column(column, overflow="fold")
    for row in rows:
        how = "changed" if row.before and row.after else "removed" if row.before else "added"
        table.add_row(*(escaped(text) for text in (_SIGNS[how], *row)), style=_STYLES[how])
    return table


def _table(difference: Difference) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    has_overlays = any(change.overlay for change in difference.changes)
    for column in ("", "what", "where", "before", "after", *(("overlay",) if has_overlays else ())):
        table.add_column(column, overflow="fold")
    for change in difference.changes:
        before, after = change.values
        cells = [_SIGNS[change.how], change.what, _where(change), before, after]
        cells += [change.overlay] if has_overlays else []
        table.add_row(*(escaped(text) for text in cells), style=_STYLES[change.how])
    return table


def _where(change: Change) -> str:
    return change.path if change.what not in ("start", "outputs", "optional", "allow", "name") else change.inside
