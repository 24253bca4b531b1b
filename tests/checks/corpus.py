"""What tests of the program import until they move: kinds that no other graph finds by name, and an edit of `fit`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graphtrain import Graph, Node, node
from graphtrain.kind import DECLARED, Kind, kind_of


def undeclared(name: str, implementation: Any, **declared: Any) -> Kind:
    """The kind of a function or class that no other graph finds by its name."""
    before = dict(DECLARED)
    try:
        return kind_of(node(name=name, **declared)(implementation))
    finally:
        DECLARED.clear()
        DECLARED.update(before)


def without_window(graph: Graph | None = None) -> Graph:
    """`fit` whose `train_batch` says nothing of a window."""
    graph = graph or Graph.load("fit")
    return replace(graph, nodes={**graph.nodes, "train_batch": Node("train_batch", "train_batch")})
