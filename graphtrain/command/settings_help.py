"""What NAME=VALUE can set: the arguments of a setup and the parameters of a graph, with types and defaults."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from graphtrain.command.output import escaped
from graphtrain.command.script import RUN_ARGUMENT
from graphtrain.graph import Graph
from graphtrain.graph.elements import NESTED
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind.docstring import descriptions_of
from graphtrain.kind.hints import hints_of
from graphtrain.kind.parameter import REQUIRED, plain_value, show_value, type_name


def print_arguments(setup: Callable[..., Any], name: str) -> None:
    """Print the arguments of a setup."""
    _print(f"Arguments of {name}", "NAME=VALUE", list(setup_rows(setup)))


def print_parameters(graph: Graph) -> None:
    """Print the parameters of the nodes of a graph."""
    _print(f"Parameters of the graph {graph.name}", "NODE.PARAM=VALUE", list(graph_rows(graph)))


def setup_rows(setup: Callable[..., Any]) -> Iterator[tuple[str, str, str, str]]:
    """Name, default, type and description of each argument of a setup.

    >>> def setup(lr: float = 0.1):
    ...     '''Arguments:
    ...         lr: learning rate.'''
    >>> list(setup_rows(setup))
    [('lr', '0.1', 'a number', 'learning rate.')]
    >>> def setup(activation: Callable[[Any], Any] = lambda value: value, layer: type = dict):
    ...     pass
    >>> [row[:3] for row in setup_rows(setup)]
    [('activation', 'a function', 'a function'), ('layer', 'dict', 'a class')]
    """
    hints = hints_of(setup)
    descriptions = descriptions_of(setup)
    for parameter in inspect.signature(setup).parameters.values():
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name == RUN_ARGUMENT:
            continue
        default = "required" if parameter.default is parameter.empty else _shown(parameter.default)
        type_text = "a path" if hints.get(name) is Path else type_name(hints[name]) if name in hints else ""
        yield name, default, type_text, descriptions.get(name, "")


def graph_rows(graph: Graph, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """The same for each parameter of the nodes of a graph; nodes of nested graphs are named by their paths."""
    for name, node in graph.nodes.items():
        kind = kind_of_node(node)
        if kind is None:
            continue  # declared by a script that is not loaded
        descriptions = kind.descriptions
        for parameter in kind.parameters.values():
            if node.use == NESTED and parameter.name not in node.parameters:
                continue
            value = node.parameters.get(parameter.name, parameter.default)
            default = "required" if value is REQUIRED else _shown(value)
            yield f"{prefix}{name}.{parameter.name}", default, parameter.type_name, descriptions.get(parameter.name, "")
        if node.body is not None:
            yield from graph_rows(node.body, f"{prefix}{name}/")


def _shown(value: Any) -> str:
    try:
        return show_value(plain_value(value)) if value is not None else "none"
    except ValueError:
        name = getattr(value, "__name__", str(value))
        return "a function" if name == "<lambda>" else name


def _print(title: str, heading: str, rows: list[tuple[str, str, str, str]]) -> None:
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(heading, no_wrap=True)
    for column in ("default", "type", ""):
        table.add_column(column, overflow="fold")
    for name, default, type_text, description in rows:
        short = re.sub(r"^an? (value of type )?| such as .*", "", type_text)
        table.add_row(*(escaped(text) for text in (name, default, short, description)))
    console.print(f"\n[bold]{escaped(title)}[/bold]" + ("" if rows else ": none"))
    if rows:
        console.print(table)
