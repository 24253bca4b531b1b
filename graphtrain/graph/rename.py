"""Renaming a node everywhere: edges, guards, reads, clock."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError
from graphtrain.graph.elements import END, redirected
from graphtrain.language.syntax import SLASH, STRING, field_of, is_expression, with_paths, without_paths
from graphtrain.names import suggestion

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph


def rename(self: Graph, old: str, new: str) -> Graph:
    """Rename a node everywhere: edges, guards, reads, clock.

    Arguments:
        old: its name; of a node in a body its path, ``"validate/next_batch"``.
        new: the new name, without a path.

    Raises:
        EditError: `old` does not exist, or `new` does.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").rename("validate/next_batch", "fetch")
    >>> "fetch" in graph.nodes["validate"].body.nodes
    True
    """
    outer, slash, rest = str(old).partition("/")
    if outer not in self.nodes:
        raise EditError(f"rename: there is no node `{outer}`", suggestion(outer, self.nodes))
    nodes, edges, start, layers = dict(self.nodes), self.edges, self.start, self.layers
    body = nodes[outer].body
    if not slash:
        if new in nodes or new == END:
            raise EditError(f"rename: there is already a node `{new}`")
        nodes = {new if name == old else name: node for name, node in nodes.items()}
        nodes[new] = replace(nodes[new], name=new)
        edges = {new if source == old else source: redirected(leaving, old, new) for source, leaving in edges.items()}
        start = new if start == old else start
        layers = replace(layers, added={new if name == old else name: by for name, by in layers.added.items()})
    elif body is None:
        raise EditError(f"rename: there is no node `{old}`: `{outer}` has no body")
    else:
        nodes[outer] = replace(nodes[outer], body=body.rename(rest, new), reference=None)
    path = f"{old.rpartition('/')[0]}{slash}{new}"
    bodies = {name for name, node in self.nodes.items() if node.body is not None}

    def in_reads(target: Any) -> Any:
        return tuple(map(in_reads, target)) if isinstance(target, tuple) else _renamed_text(target, old, path, bodies)

    return replace(
        self,
        nodes={
            name: replace(node, reads={key: in_reads(target) for key, target in node.reads.items()})
            for name, node in nodes.items()
        },
        edges=edges,
        guards={key: _renamed_expression(text, old, path, bodies) for key, text in self.guards.items()},
        units={unit: in_reads(text) for unit, text in self.units.items()},
        start=start,
        layers=layers,
    )


def _renamed_expression(text: str, old: str, new: str, bodies: Collection[str]) -> str:
    """A guard expression that reads fields of `old` from `new`; `bodies` are the nodes with whose names paths begin."""
    text, old = with_paths(text, bodies), with_paths(old, bodies)
    owner = rf"(?<![\w.]){re.escape(old)}(?=\s*\.|{SLASH})"
    return without_paths(re.sub(rf"{STRING}|{owner}", lambda match: match[1] or new, text))


def _renamed_text(text: str, old: str, new: str, bodies: Collection[str]) -> str:
    """A text that a node reads or a unit counts, with a node renamed in it."""
    owned = field_of(text)
    if owned is None:
        return _renamed_expression(text, old, new, bodies) if is_expression(text) else text
    path, name = owned
    return f"{new}{path.removeprefix(old)}.{name}" if f"{path}/".startswith(f"{old}/") else text
