"""The pictures of a graph for a page, with what its elements stand for: nodes by their keys, arrows by their edges."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from graphtrain.errors import GraphtrainError
from graphtrain.graph.elements import GraphData, Node, nodes_of, settings_of
from graphtrain.graph.registry import kind_of_node
from graphtrain.viz.dot import to_dot
from graphtrain.viz.picture import Picture, key_of, picture
from graphtrain.viz.render import draw
from graphtrain.viz.theme import DARK, LIGHT, rules
from graphtrain.viz.wording import kind_line, one_line


def content_of(graph: GraphData) -> dict[str, Any]:
    """What a page shows of a graph: its pictures, unfolded and folded; its nodes by path, and its edges by key.

    The key of an edge is that of `graphtrain.Run.activity`. Where nothing can draw, there are no pictures, and `error`
    says why.

    >>> from graphtrain import Graph
    >>> content = content_of(Graph.load("evaluate"))
    >>> [drawn["name"] for drawn in content["pictures"]], content["edges"]["eval_batch -> next_batch"]["order"]
    (['unfolded'], 2)
    """
    edges = dict(_edges(graph))
    content: dict[str, Any] = {
        "name": graph.name,
        "nodes": {path: _node(node) for path, node in nodes_of(graph).items()},
        "edges": edges,
        "pictures": [],
        "error": "",
    }
    try:
        content["pictures"].append(_drawn("unfolded", picture(graph), graph))
        if any(node.body is not None for node in graph.nodes.values()):
            content["pictures"].append(_drawn("folded", _folded(graph), graph))
    except GraphtrainError as error:
        content["error"] = str(error)
    return content


def _drawn(name: str, drawn: Picture, graph: GraphData) -> dict[str, Any]:
    keys = {key_of(path.split("/")): path for path in nodes_of(graph)}
    arrows = []
    for arrow in drawn.arrows:
        path = keys.get(arrow.source)
        edge = None
        if path is not None:
            scope, _, source = path.rpartition("/")
            edge = _scope(graph, scope).edges[source][(arrow.number or 1) - 1]
        arrows.append(None if edge is None else f"{path} -> {edge}")
    return {"name": name, "svg": _svg(drawn), "keys": keys, "arrows": arrows}


def _svg(drawn: Picture) -> str:
    return _laid_out(to_dot(drawn, arrow_ids=True))


@functools.lru_cache(maxsize=32)  # a page that is watched asks for the same pictures again and again: 200 ms each
def _laid_out(dot_text: str) -> str:
    text = draw(dot_text, "svg").decode()
    return text[text.index("<svg") :]


def _scope(graph: GraphData, scope: str) -> GraphData:
    for name in filter(None, scope.split("/")):
        body = graph.nodes[name].body
        assert body is not None
        graph = body
    return graph


def _folded(graph: GraphData) -> Picture:
    """The picture of a graph in which every body is one box."""
    bodies = {name: node for name, node in graph.nodes.items() if node.body is not None}
    closed = {name: replace(node, body=None, use=node.body.name) for name, node in bodies.items() if node.body}
    drawn = picture(replace(graph, nodes={**graph.nodes, **closed}))
    keys = {key_of([name]) for name in bodies}
    return drawn.map_boxes(lambda box: replace(box, family="nested") if box.key in keys else box)


def _node(node: Node) -> dict[str, Any]:
    kind = kind_of_node(node) if node.body is None else None
    about = one_line(kind.description.partition("\n")[0]).replace("``", "`") if kind is not None else ""
    return {
        "kind": kind_line(node) or node.use,
        "about": about,
        "settings": [one_line(line) for line in settings_of(node)],
    }


def _edges(graph: GraphData, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for source, edges in graph.edges.items():
        for order, edge in enumerate(edges, 1):
            expression = graph.guards.get(edge.when, "") if edge.when is not None else ""
            yield (
                f"{prefix}{source} -> {edge}",
                {
                    "source": f"{prefix}{source}",
                    "target": edge.target,
                    "guard": edge.when or "",
                    "expression": expression,
                    "order": order,
                },
            )
    for name, node in graph.nodes.items():
        if node.body is not None:
            yield from _edges(node.body, f"{prefix}{name}/")


def style() -> str:
    """CSS for the pictures: the colours of the classes that `to_dot` gives, in light and in dark.

    >>> ".heat10" in style() and "[data-theme=dark]" in style()
    True
    """
    light = (f".graph-picture {rule}\n" for rule in rules(LIGHT))
    return "".join([*light, *(f"[data-theme=dark] .graph-picture {rule}\n" for rule in rules(DARK))])
