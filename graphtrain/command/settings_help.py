"""What NAME=VALUE can set: the arguments of a setup and the parameters of a graph, with types and defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from graphtrain.command.output import console, escaped, table
from graphtrain.command.settings import arguments_of, nodes_of
from graphtrain.graph import Graph
from graphtrain.graph.elements import NESTED
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind.docstring import descriptions_of
from graphtrain.kind.parameter import REQUIRED, Parameter, plain_value, show_value

# Name, default, type and description.
Row = tuple[str, str, str, str]


def print_arguments(setup: Callable[..., Any], name: str) -> None:
    """Print the arguments of a setup."""
    _print(f"Arguments of {name}", "NAME=VALUE", [*setup_rows(setup)])


def print_parameters(graph: Graph) -> None:
    """Print the parameters of the nodes of a graph."""
    _print(f"Parameters of the graph {graph.name}", "NODE.PARAM=VALUE", [*graph_rows(graph)])


def _print(title: str, heading: str, rows: Sequence[Row]) -> None:
    printed = console()
    printed.print(f"\n[bold]{escaped(title)}[/bold]" + ("" if rows else ": none"))
    if rows:
        printed.print(table([heading, "default", "type", ""], rows, whole=[heading]))


def setup_rows(setup: Callable[..., Any]) -> Iterator[Row]:
    """The arguments of a setup.

    >>> def setup(lr: float = 0.1):
    ...     '''Arguments:
    ...         lr: learning rate.'''
    >>> list(setup_rows(setup))
    [('lr', '0.1', 'number', 'learning rate.')]
    >>> def setup(activation: Callable[[Any], Any] = lambda value: value, layer: type = dict):
    ...     pass
    >>> [row[:3] for row in setup_rows(setup)]
    [('activation', 'a function', 'function'), ('layer', 'dict', 'class')]
    """
    descriptions = descriptions_of(setup)
    for name, argument in arguments_of(setup).items():
        yield _row(name, argument, argument.default, descriptions.get(name, ""))


def graph_rows(graph: Graph) -> Iterator[Row]:
    """The parameters of the nodes of a graph; nodes of nested graphs are named by their paths."""
    for path, node in nodes_of(graph):
        kind = kind_of_node(node)
        if kind is None:
            continue  # declared by a script that is not loaded
        for name, parameter in kind.parameters.items():
            if node.use != NESTED or name in node.parameters:
                value = node.parameters.get(name, parameter.default)
                yield _row(f"{path}.{name}", parameter, value, kind.descriptions.get(name, ""))


def _row(name: str, parameter: Parameter, value: Any, description: str) -> Row:
    wanted = parameter.annotation
    named = "path" if wanted is Path else "" if wanted is Any else parameter.type_name
    return name, _shown(value), re.sub(r"^an? (value of type )?| such as .*", "", named), description


def _shown(value: Any) -> str:
    if value is None or value is REQUIRED:
        return "none" if value is None else "required"
    try:
        return show_value(plain_value(value))
    except ValueError:
        name = getattr(value, "__name__", str(value))
        return "a function" if name == "<lambda>" else name
