"""`graphtrain diff`: how two graphs differ, and the arguments of two runs. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from graphtrain.command.cli import command, output_option, overlay_option
from graphtrain.command.output import console, counted, escaped, notify, shown, table
from graphtrain.command.script import load_graph
from graphtrain.command.settings import renamings
from graphtrain.graph import Graph
from graphtrain.graph.difference import Change
from graphtrain.graph.registry import find_graph
from graphtrain.graph.renaming import Renaming
from graphtrain.lazy import imported
from graphtrain.storage.named import graph_of, holds_a_graph, saved_manifest

_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


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
    """Show how two graphs differ: nodes, edges and their order, guards, parameters, clock.

    A and B are shipped graphs (fit), TOML files, scripts (which are imported), run directories, or checkpoints;
    --overlay is added to B. Of two run directories or checkpoints the arguments of setup are compared too. A + was
    added, a - removed, a ~ changed.
    """
    (graph, arguments), (other, other_arguments) = _read(before), _read(after)
    if overlay:
        other = load_graph(other, overlays=overlay)
    difference = Renaming(renamings(rename), graph, other).graph(graph).diff(other)
    changes = difference.changes
    rows: list[tuple[str, ...]] = [(each.how, each.what, _where(each), *each.values) for each in changes]
    rows += _changed_arguments(arguments, other_arguments)
    summary = counted(len(rows), "difference") if rows else "no difference"
    if difference and not difference.matters and len(rows) == len(changes):
        summary += ", none of which changes what the graph does"
    printed = console()
    printed.print(f"[bold]{escaped(before)} -> {escaped(after)}[/bold]: {summary}", soft_wrap=True)
    if rows:
        signed = [(_SIGNS[how], *cells) for how, *cells in rows]
        printed.print(table(["", "what", "where", "before", "after"], signed, styles=[_STYLES[row[0]] for row in rows]))
    if output is not None:
        click.echo(f"wrote {imported('graphtrain.viz.render').render(difference, output)}")


def _read(source: str) -> tuple[Graph, Mapping[str, Any] | None]:
    """The graph of any source; of a run directory or a checkpoint also the arguments of its setup.

    Checkpoints that are skipped are reported.
    """
    if find_graph(source) is None and holds_a_graph(Path(source)):
        checkpoint, manifest = saved_manifest(source, notify)
        return graph_of(checkpoint, manifest), manifest.about.get("arguments", {})
    return load_graph(source), None


def _changed_arguments(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    """Rows for the arguments of setup that differ between two runs."""
    if before is None or after is None:
        return []
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    hows = ["added" if name not in before else "removed" if name not in after else "changed" for name in names]
    texts = ([shown(run[name]) if name in run else "" for name in names] for run in (before, after))
    return [(how, "argument", name, old, new) for how, name, old, new in zip(hows, names, *texts, strict=True)]


def _where(change: Change) -> str:
    return change.path if change.what not in ("start", "outputs", "optional", "allow", "name") else change.inside
