"""`graphtrain show`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from graphtrain.command.printable import printable
from graphtrain.graph import Graph
from graphtrain.parameter import show_value


def show_command(source: str) -> None:
    """Print a graph as tables."""
    graph = Graph.load(source)
    console = Console(width=None, highlight=False)
    _show(graph, graph.name, console)


def _show(graph: Graph, title: str, console: Console) -> None:
    console.print(f"[bold]{_plain(title)}[/bold]  start: {_plain(graph.start)}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("node", "kind", "parameters", "what comes next"):
        table.add_column(column, overflow="fold")
    for name, node in graph.nodes.items():
        parameters = [f"{key} = {show_value(value)}" for key, value in node.parameters.items()]
        for verb, mapping in (("reads", node.reads), ("writes", node.writes)):
            parameters += [
                f"{verb} {slot} from {_names(target)}" if verb == "reads" else f"{verb} {slot} to {target}"
                for slot, target in mapping.items()
            ]
        kind = f"graph {node.body.name}" if node.body is not None else node.use
        edges = [f"{number}. {edge}" for number, edge in enumerate(graph.edges.get(name, ()), start=1)]
        if len(edges) == 1:
            edges = [str(graph.edges[name][0])]
        table.add_row(
            *(_plain(text) for text in (name, kind if kind != name else "", "\n".join(parameters), "\n".join(edges)))
        )
    console.print(table)
    for heading, mapping in (("guards", graph.guards), ("clock", graph.units)):
        if mapping:
            inner = Table(box=None, pad_edge=False, header_style="dim")
            inner.add_column(heading)
            inner.add_column("", overflow="fold")
            for key, text in mapping.items():
                inner.add_row(_plain(key), _plain(text))
            console.print()
            console.print(inner)
    for name, node in graph.nodes.items():
        if node.body is not None:
            console.print()
            _show(node.body, f"{title}/{name}", console)


def _names(target: str | tuple[str, ...]) -> str:
    return target if isinstance(target, str) else ", ".join(target)


def _plain(text: str) -> str:
    return escape(printable(text))
