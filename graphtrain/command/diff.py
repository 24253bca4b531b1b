"""`graphtrain diff`: how two graphs differ. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from graphtrain.command.cli import command
from graphtrain.command.graphs import ON_GRAPHS
from graphtrain.command.output import console, counted, escaped, notify, table
from graphtrain.command.script import load_graph
from graphtrain.command.settings import renamings
from graphtrain.graph import Graph
from graphtrain.graph.difference import Change
from graphtrain.graph.registry import find_graph
from graphtrain.graph.renaming import Renaming
from graphtrain.lazy import part
from graphtrain.storage.named import graph_of, holds_a_graph, saved_manifest

_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


@command(
    "graphtrain diff fit my_fit.toml",
    "graphtrain diff runs/first runs/second",
    "graphtrain diff runs/first my_fit.toml -o difference.svg",
    "graphtrain diff fit fit --overlay ema",
    "graphtrain diff runs/first/checkpoints/000001-step-60 runs/second",
    shared=ON_GRAPHS,
)
def diff(
    before: str,
    after: str,
    *,
    output: Path | None = None,
    rename: Sequence[str] = (),
    exit_code: bool = False,
    overlay: Sequence[str] = (),
    contained: bool = False,
) -> int:
    """Show how two graphs differ: nodes, edges and their order, guards, parameters, clock.

    A + was added, a - removed, a ~ changed from A to B. For the settings and metrics of runs: graphtrain ls --columns.

    Exit codes: 0 shown, different or not; 1 different, with --exit-code; 2 there is no such graph.

    Arguments:
        before (A): A shipped graph, a TOML file, a script (which is imported), a run directory (its newest checkpoint),
            or a checkpoint.
        after (B): What to compare it with, likewise.

    Options:
        output (FILE): Draw both in one picture: .svg, .png, .pdf, .dot or .mmd (mermaid).
        rename (OLD=NEW): The node OLD of A is the node NEW of B.
        exit_code: Exit with 1 if anything that is compared differs.
    """
    graph, other = _read(before, contained), _read(after, contained)
    if overlay:
        other = load_graph(other, overlays=overlay, contained=contained)
    difference = Renaming(renamings(rename), graph, other).graph(graph).diff(other)
    count = len(difference.changes)
    summary = counted(count, "difference") if count else "no difference"
    if difference and not difference.matters:
        summary += ", none of which changes what the graph does"
    printed = console()
    printed.print(f"[bold]{escaped(before)} -> {escaped(after)}[/bold]: {summary}", soft_wrap=True)
    if difference:
        _print_changes(difference.changes)
    for old, new in difference.renamings:
        suggestion = f"`{old}` and `{new}` are alike: a renaming? --rename {old}={new}"
        printed.print(escaped(suggestion), soft_wrap=True, style="dim")
    if output is not None:
        click.echo(f"wrote {part('viz').render(difference, output)}")
    return int(exit_code and bool(count))


def _read(source: str, contained: bool) -> Graph:
    """The graph of a name, a file, a script, a run directory or a checkpoint. Skipped checkpoints are reported."""
    if find_graph(source) is None and holds_a_graph(Path(source)):
        return graph_of(*saved_manifest(source, notify, contained=contained))
    return load_graph(source, contained=contained)


def _print_changes(changes: Sequence[Change]) -> None:
    width = 6 if any(change.overlay for change in changes) else 5
    rows = [
        (_SIGNS[change.how], change.what, _where(change), *change.values, change.overlay)[:width] for change in changes
    ]
    console().print(
        table(
            ["", "what", "where", "before", "after", "overlay"][:width],
            rows,
            styles=[_STYLES[change.how] for change in changes],
        )
    )


def _where(change: Change) -> str:
    return change.path if change.what not in ("start", "outputs", "optional", "allow", "name") else change.inside
