"""Readers of what the renderers write, independent of them: Graphviz itself, and a line pattern for Mermaid."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import NamedTuple

from graphtrain.graph import Graph
from graphtrain.graph.elements import END
from graphtrain.viz.layout import draw


class Line(NamedTuple):
    """A drawn edge, in the words that every format shares."""

    source: str
    target: str
    label: str
    dashed: bool


class Drawing(NamedTuple):
    """What Graphviz understood of a DOT text: nodes, clusters with their nodes, edges."""

    nodes: dict[str, dict[str, str]]
    clusters: dict[str, set[str]]
    edges: list[tuple[str, str, dict[str, str]]]


def read_dot(text: str) -> Drawing:
    read = json.loads(draw(text, "json0"))  # type: ignore[arg-type]
    objects = read.get("objects", [])
    clusters = [item for item in objects if "nodes" in item or "subgraphs" in item]
    return Drawing(
        nodes={item["name"]: item for item in objects if item not in clusters},
        clusters={
            cluster["name"]: {objects[node]["name"] for node in cluster.get("nodes", ())} for cluster in clusters
        },
        edges=[(objects[edge["tail"]]["name"], objects[edge["head"]]["name"], edge) for edge in read.get("edges", ())],
    )


def dot_lines(text: str) -> Counter[Line]:
    return Counter(
        Line(source, target, attributes.get("label", "").strip(), attributes.get("style") == "dashed")
        for source, target, attributes in read_dot(text).edges
    )


_MERMAID_EDGE = re.compile(r'  (\w+) (?:-\. "([^"]*)" \.->|-- "([^"]*)" -->|-->) (\w+)')


def mermaid_lines(text: str) -> Counter[Line]:
    lines = Counter()
    for line in text.splitlines():
        match = _MERMAID_EDGE.fullmatch(line)
        if match is not None:
            source, dashed, solid, target = match.groups()
            lines[Line(source, target, dashed or solid or "", dashed is not None)] += 1
    return lines


def declared_lines(graph: Graph, prefix: str = "") -> Counter[Line]:
    """What every picture of a graph with plain names has to show, read from the graph by hand."""
    lines = Counter() if prefix else Counter([Line("+start", _entry(graph, graph.start, ""), "", False)])
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
    body = graph.nodes[name].body
    return prefix + name if body is None else _entry(body, body.start, f"{prefix}{name}/")


def mermaid_name(key: str) -> str:
    return "n_" + re.sub(r"[+/]+", "_", key)
