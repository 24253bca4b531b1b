"""`graphtrain diff`: how two graphs differ. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from graphtrain.command.cli import command, output_option, overlay_option
from graphtrain.command.output import console, escaped, plural, table
from graphtrain.command.script import load_graph
from graphtrain.command.settings import pairs
from graphtrain.graph.difference import SIGNS, Change
from graphtrain.graph.renaming import Renaming
from graphtrain.lazy import imported

_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}


@command(
    "graphtrain diff fit my_fit.toml",
    "graphtrain diff runs/first runs/second",
    "graphtrain diff runs/first my_fit.toml -o difference.svg",
    "graphtrain diff fit fit --overlay ema",
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@output_option
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="The node OLD of A is the node NEW of B.")
@overlay_option
def diff(
    before: str,
    after: str,
    *,
    output: Path | None = None,
    rename: Sequence[str] = (),
    overlay: Sequence[str] = (),
) -> None:
    """Show how two graphs differ.

    A and B are shipped graphs (fit), TOML files, scripts (which are imported), run directories, or checkpoints;
    --overlay is added to B. + marks what was added, - what was removed, ~ what was changed.
    """
    graph, other = load_graph(before), load_graph(after, overlays=overlay)
    difference = Renaming(pairs(rename, "--rename OLD=NEW"), graph, other).graph(graph).diff(other)
    changes = difference.changes
    rows = [(each.how, each.category, _where(each), *each.values) for each in changes]
    summary = plural(len(rows), "difference") if rows else "no difference"
    printed = console()
    printed.print(f"[bold]{escaped(before)} -> {escaped(after)}[/bold]: {summary}", soft_wrap=True)
    if rows:
        signed = [(SIGNS[how], *cells) for how, *cells in rows]
        printed.print(table(["", "what", "where", "before", "after"], signed, styles=[_STYLES[row[0]] for row in rows]))
    if output is not None:
        click.echo(f"wrote {imported('graphtrain.viz.render').render(difference, output)}")


def _where(change: Change) -> str:
    return change.path if change.category not in ("start", "outputs", "optional", "optimizer") else change.inside
