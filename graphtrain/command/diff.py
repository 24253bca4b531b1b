"""`graphtrain diff`: how two graphs differ. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from graphtrain.command.cli import command, output_option, overlay_option
from graphtrain.command.output import console, escaped, plural, table
from graphtrain.command.script import load_graph
from graphtrain.command.settings import pairs
from graphtrain.graph.difference import SIGNS
from graphtrain.graph.renaming import Renaming
from graphtrain.lazy import imported

_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
_OF_A_GRAPH = ("start", "outputs", "optional", "optimizer")


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
    summary = plural(len(difference.changes), "difference") if difference else "no difference"
    printed = console()
    printed.print(f"[bold]{escaped(before)} -> {escaped(after)}[/bold]: {summary}", soft_wrap=True)
    if difference:
        rows, styles = [], [_STYLES[each.how] for each in difference.changes]
        for each in difference.changes:
            where = each.inside if each.category in _OF_A_GRAPH else each.path
            rows.append((SIGNS[each.how], each.category, where, *each.values))
        printed.print(table(["", "what", "where", "before", "after"], rows, styles=styles))
    if output is not None:
        click.echo(f"wrote {imported('graphtrain.viz.render').render(difference, output)}")
