"""Readers of what the renderers write, independent of them: Graphviz itself, and a line pattern for Mermaid."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, NamedTuple

from graphtrain.graph import Graph
from graphtrain.graph.elements import END
from graphtrain.viz.render import draw


class Line(NamedTuple):
    """A drawn edge, in the words that every format shares; one that ends in the name of a hub leads to that hub."""

    source: str
    target: str
    label: str
    dashed: bool


class Drawing(NamedTuple):
    """What Graphviz understood of a DOT text: nodes, clusters with their nodes, edges that are seen."""

    nodes: dict[str, dict[str, str]]
    clusters: dict[str, set[str]]
    edges: list[tuple[str, str, dict[str, str]]]


class Area(NamedTuple):
    """Where something is drawn, in points; y grows upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def is_inside(self, other: Area) -> bool:
        return (
            other.left < self.left and self.right < other.right and other.bottom < self.bottom and self.top < other.top
        )

    def is_outside(self, other: Area) -> bool:
        return self.right < other.left or other.right < self.left or self.top < other.bottom or other.top < self.bottom


class Layout(NamedTuple):
    """Where Graphviz puts things: middles of nodes, frames of clusters, and texts with their areas."""

    nodes: dict[str, tuple[float, float]]
    frames: dict[str, Area]
    captions: dict[str, list[tuple[str, Area]]]
    labels: list[tuple[str, Area]]


def read_layout(text: str) -> Layout:
    read = json.loads(draw(text, "json"))  # type: ignore[arg-type]
    objects = read.get("objects", [])
    frames = {
        item["name"].removeprefix("cluster_"): Area(*map(float, item["bb"].split(",")))
        for item in objects
        if "bb" in item
    }
    return Layout(
        nodes={item["name"]: tuple(map(float, item["pos"].split(","))) for item in objects if "pos" in item},
        frames=frames,
        captions={
            **{item["name"].removeprefix("cluster_"): _texts(item) for item in objects if "bb" in item},
            "": _texts(read),
        },
        labels=[text for edge in read.get("edges", ()) for text in _texts(edge)],
    )


def _texts(item: dict[str, Any]) -> list[tuple[str, Area]]:
    """The texts of a label, and the areas of their letters: without the spaces around them."""
    texts, size = [], 0.0
    for operation in item.get("_ldraw_", ()):
        if operation["op"] == "F":
            size = operation["size"]
        elif operation["op"] == "T" and (words := operation["text"].strip()):
            (x, y), width = operation["pt"], operation["width"]
            space = width * (len(operation["text"]) - len(words)) / len(operation["text"])
            left = x - width / 2 if operation["align"] == "c" else x if operation["align"] == "l" else x - width
            texts.append((words, Area(left + space / 2, y - 0.25 * size, left + width - space / 2, y + 0.75 * size)))
    return texts


def read_dot(text: str) -> Drawing:
    read = json.loads(draw(text, "json0"))  # type: ignore[arg-type]
    objects = read.get("objects", [])
    clusters = [item for item in objects if "nodes" in item or "subgraphs" in item]
    edges = [edge for edge in read.get("edges", ()) if edge.get("style") != "invis"]
    return Drawing(
        nodes={item["name"]: item for item in objects if item not in clusters},
        clusters={
            cluster["name"]: {objects[node]["name"] for node in cluster.get("nodes", ())} for cluster in clusters
        },
        edges=[(objects[edge["tail"]]["name"], objects[edge["head"]]["name"], edge) for edge in edges],
    )


def dot_lines(text: str) -> Counter[Line]:
    drawing = read_dot(text)
    return Counter(
        Line(
            source,
            hubs(drawing).get(target, target),
            attributes.get("label", "").strip(),
            attributes.get("style") == "dashed",
        )
        for source, target, attributes in drawing.edges
    )


def hubs(drawing: Drawing) -> dict[str, str]:
    """The marks in which arrows to a hub end -> the key of the hub, whose name stands there."""
    names = {
        key: re.search(r"\N{UPWARDS ARROW} ([^<]*)<", node["label"])
        for key, node in drawing.nodes.items()
        if node.get("class") == "return"
    }
    return {key: "".join(key.rpartition("/")[:2]) + name[1] for key, name in names.items() if name is not None}


_MERMAID_HUB = re.compile(r'\s+(\w+)\["\N{UPWARDS ARROW} ([^"]*)"\]')
_MERMAID_EDGE = re.compile(r'  (\w+) (?:-\. "([^"]*)" \.->|-- "([^"]*)" -->|-->) (\w+)')


def mermaid_lines(text: str) -> Counter[Line]:
    lines = Counter()
    names = {match[1]: mermaid_name(match[2]) for line in text.splitlines() if (match := _MERMAID_HUB.fullmatch(line))}
    for line in text.splitlines():
        match = _MERMAID_EDGE.fullmatch(line)
        if match is not None:
            source, dashed, solid, target = match.groups()
            lines[Line(source, names.get(target, target), dashed or solid or "", dashed is not None)] += 1
    return lines


def declared_lines(graph: Graph, prefix: str = "") -> Counter[Line]:
    """What every picture of a graph with plain names has to show, read from the graph by hand."""
    lines = Counter([Line(prefix + "+start", _entry(graph, graph.start, prefix), "", False)])
    for source, edges in graph.edges.items():
        node = graph.nodes[source]
        tail = prefix + source + ("/+end" if node.body is not None else "")
        for number, edge in enumerate(edges, start=1):
            words = ([str(number)] if len(edges) > 1 else []) + ([edge.when] if edge.when else [])
            head = prefix + "+end" if edge.target == END else _entry(graph, edge.target, prefix)
            lines[Line(tail, head, " ".join(words), edge.when is not None)] += 1
        if node.body is not None:
            lines += declared_lines(node.body, f"{prefix}{source}/")
    return lines


def _entry(graph: Graph, name: str, prefix: str) -> str:
    return prefix + name if graph.nodes[name].body is None else f"{prefix}{name}/+start"


def mermaid_name(key: str) -> str:
    return "n_" + re.sub(r"[+/]+", "_", key)
