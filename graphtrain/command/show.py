"""`graphtrain show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from graphtrain.command.output import escaped
from graphtrain.command.script_graph import load_graph
from graphtrain.graph import Graph
from graphtrain.graph.elements import kind_text, settings_of
from graphtrain.graph.layers import node as node_key

if TYPE_CHECKING:
    from graphtrain.plan.save_points import SavePoint


def show_command(
    source: str,
    *,
    save_points: bool = False,
    script: str | None = None,
    overlays: Sequence[str] = (),
    contained: bool = False,
) -> None:
    """Print a graph as tables.

    Arguments:
        save_points: True adds where a checkpoint can be made, and which slots it would hold; this imports the kinds.
        script: a Python file that declares further kinds. Default: none.
        overlays: overlays that are added. Default: none.
        contained: as of `Graph.load`. Default: False.
    """
    if script is not None:
        from graphtrain.command.script import import_script

        import_script(Path(script.partition(":")[0]))
    graph = load_graph(source, overlays=overlays, contained=contained)
    console = Console(highlight=False)
    if not save_points:
        _show(graph, graph.name, console)
        return
    from graphtrain.checks import checked_graph
    from graphtrain.plan.save_points import save_points_of

    points = {point.path: point for point in save_points_of(checked_graph(graph))}
    _show(graph, graph.name, console, points)
    console.print()
    possible = sum(not point.transient for point in points.values())
    console.print(f"a checkpoint can be made before {possible} of {len(points)} nodes", soft_wrap=True)


def _show(
    graph: Graph, title: str, console: Console, points: Mapping[str, SavePoint] | None = None, prefix: str = ""
) -> None:
    layers = graph.layers
    added = f"  optimizer: {graph.optimizer}" if graph.optimizer else ""
    added += f"  overlays: {', '.join(layers.names)}" if layers.names else ""
    console.print(f"[bold]{escaped(title)}[/bold]  start: {escaped(graph.start + added)}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    marks = [*(["save point before it"] if points is not None else []), *(["overlay"] if layers.names else [])]
    for column in ("node", "kind", "parameters", "what comes next", *marks):
        table.add_column(column, overflow="fold")
    for name, node in graph.nodes.items():
        edges = [f"{number}. {edge}" for number, edge in enumerate(graph.edges.get(name, ()), start=1)]
        if len(edges) == 1:
            edges = [str(graph.edges[name][0])]
        cells = [name, kind_text(node), "\n".join(settings_of(node)), "\n".join(edges)]
        if points is not None:
            cells.append(_mark(points[prefix + name]))
        if layers.names:
            own = layers.overlay_of(node_key(name))
            cells.append(", ".join(dict.fromkeys([*([own] if own else ()), *layers.overlays_of_node(name)])))
        table.add_row(*(escaped(text) for text in cells))
    console.print(table)
    for heading, mapping in (("guards", graph.guards), ("clock", graph.units)):
        if mapping:
            inner = Table(box=None, pad_edge=False, header_style="dim")
            inner.add_column(heading)
            inner.add_column("", overflow="fold")
            has_overlays = bool(layers.names) and heading == "guards"
            if has_overlays:
                inner.add_column("overlay", overflow="fold")
            for key, text in mapping.items():
                overlays = [", ".join(layers.overlays_of_guard(key))] if has_overlays else []
                inner.add_row(*map(escaped, (key, text, *overlays)))
            console.print()
            console.print(inner)
    for name, node in graph.nodes.items():
        if node.body is not None:
            console.print()
            _show(node.body, f"{title}/{name}", console, points, f"{prefix}{name}/")


def _mark(point: SavePoint) -> str:
    """Whether a checkpoint can be made before a node, and which slots it would hold."""
    if point.transient:
        verb = "is" if len(point.transient) == 1 else "are"
        return f"no: {', '.join(point.transient)} {verb} transient"
    return f"yes, with {', '.join(point.alive)}" if point.alive else "yes"
