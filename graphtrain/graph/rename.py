"""Renaming a node everywhere: edges, guards, reads, clock."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from graphtrain.errors import EditError
from graphtrain.graph.elements import END, redirected
from graphtrain.language.syntax import SLASH, STRING, field_of, is_expression, with_paths, without_paths
from graphtrain.names import suggestion

if TYPE_CHECKING:
    from graphtrain.graph.edit import Editable

EditedGraph = TypeVar("EditedGraph", bound="Editable")


def renamed(graph: EditedGraph, old: str, new: str, prefix: str = "") -> EditedGraph:
    """As `Graph.rename`.

    Arguments:
        prefix: the path of this graph, for messages. Default: it is the outermost.
    """
    if not isinstance(old, str):
        graph._known(old, "rename")
    outer, slash, rest = old.partition("/")
    if outer not in graph.nodes:
        known = [f"{prefix}{name}" for name in graph.nodes]
        raise EditError(f"rename: there is no node `{prefix}{outer}`", suggestion(f"{prefix}{outer}", known))
    body, path = graph.nodes[outer].body, f"{old.rpartition('/')[0]}{slash}{new}"
    nodes, edges, start, layers = graph.nodes, graph.edges, graph.start, graph.layers
    if not slash:
        if new in nodes or new == END:
            raise EditError(f"rename: there is already a node `{prefix}{new}`")
        nodes = {
            new if name == old else name: replace(node, name=new) if name == old else node
            for name, node in nodes.items()
        }
        edges = {new if source == old else source: redirected(leaving, old, new) for source, leaving in edges.items()}
        start, layers = new if start == old else start, layers.renamed(old, new)
    elif body is None:
        raise EditError(f"rename: there is no node `{prefix}{old}`: `{prefix}{outer}` has no body")
    else:
        inside = renamed(body, rest, new, f"{prefix}{outer}/")
        nodes = {
            name: replace(node, body=inside, reference=None) if name == outer else node for name, node in nodes.items()
        }
    bodies = {name for name, node in graph.nodes.items() if node.body is not None}

    def in_reads(target: Any) -> Any:
        return tuple(map(in_reads, target)) if isinstance(target, tuple) else _renamed_text(target, old, path, bodies)

    return graph._with(
        nodes={
            name: replace(node, reads={key: in_reads(target) for key, target in node.reads.items()})
            for name, node in nodes.items()
        },
        edges=edges,
        guards={key: rename_in_expression(text, old, path, bodies) for key, text in graph.guards.items()},
        units={unit: in_reads(text) for unit, text in graph.units.items()},
        start=start,
        layers=layers,
    )


def rename_in_expression(text: str, old: str, new: str, bodies: Collection[str] = ()) -> str:
    """A guard expression that reads fields of `old` from `new`; the checks report text that cannot be parsed.

    Arguments:
        old, new: the names, or paths that differ in the last name.
        bodies: the nodes that have a body, with whose names paths begin. Default: none.

    >>> rename_in_expression("step.steps > 3 and 'step.steps' == mode", "step", "d_step")
    "d_step.steps > 3 and 'step.steps' == mode"
    >>> rename_in_expression("step.runs / 2 > fit/step.steps", "step", "d_step", ["fit"])
    'd_step.runs / 2 > fit/step.steps'
    """
    text, old = with_paths(text, bodies), with_paths(old, bodies)
    owner = rf"(?<![\w.]){re.escape(old)}(?=\s*\.|{SLASH})"
    return without_paths(re.sub(rf"{STRING}|{owner}", lambda match: match[1] or new, text))


def _renamed_text(text: str, old: str, new: str, bodies: Collection[str]) -> str:
    """A text that a node reads or a unit counts, with a node renamed in it."""
    owned = field_of(text)
    if owned is None:
        return rename_in_expression(text, old, new, bodies) if is_expression(text) else text
    path, name = owned
    return f"{new}{path.removeprefix(old)}.{name}" if f"{path}/".startswith(f"{old}/") else text
