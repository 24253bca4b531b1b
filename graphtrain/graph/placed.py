"""Where in a file everything of a graph comes from, after an edit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphtrain.graph.elements import Node, Place

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph


def _placed_node(node: Node, before: Node | None, place: Place) -> Node:
    if node.place is not None and node == before:
        return node
    if before is not None and before.body is not None and node.body is not None and node.reference == before.reference:
        same = replace(node, body=before.body) == before
        return replace(node, body=placed(node.body, before.body, place), place=node.place if same else place)
    return replace(node, place=place)


def placed(edited: Graph, before: Graph, place: Place) -> Graph:
    """The graph in which everything that an edit changed has the place of the edit."""
    nodes = {name: _placed_node(node, before.nodes.get(name), place) for name, node in edited.nodes.items()}
    edges = {
        source: leaving
        if leaving is before.edges.get(source)
        else tuple(
            edge if edge.place is not None and edge in before.edges.get(source, ()) else replace(edge, place=place)
            for edge in leaving
        )
        for source, leaving in edited.edges.items()
    }
    places = {
        **edited.places,
        **{f"guards.{name}": place for name, text in edited.guards.items() if before.guards.get(name) != text},
        **{f"clock.{unit}": place for unit, text in edited.units.items() if before.units.get(unit) != text},
        **{f"edges.{source}": place for source, leaving in edges.items() if before.edges.get(source) != leaving},
    }
    return replace(edited, nodes=nodes, edges=edges, places=places)
