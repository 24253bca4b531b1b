"""What pictures of graphs show, read independently of what draws them: by pygraphviz, and by lines of Mermaid."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from pygraphviz import AGraph  # type: ignore[import-untyped]

from graphtrain import Graph

Attributes = dict[str, str]


class Line(NamedTuple):
    """A drawn edge, in the words that every format shares; one that ends in the name of a hub leads to that hub."""

    source: str
    target: str
    label: str
    dashed: bool


class Drawing(NamedTuple):
    """What Graphviz understands of a DOT text: its caption, nodes, bodies with their nodes, edges that are seen."""

    caption: str
    nodes: dict[str, Attributes]
    bodies: dict[str, set[str]]
    edges: list[tuple[str, str, Attributes]]

    def words(self, name: str) -> list[str]:
        """The lines of text in a node."""
        return words_of(self.nodes[name]["label"])

    def lines(self, *without: str) -> Counter[Line]:
        """The edges that are drawn, but those with one of these marks."""
        hubs = {
            name: "".join(name.rpartition("/")[:2]) + words_of(node["label"])[0].removeprefix("\N{UPWARDS ARROW} ")
            for name, node in self.nodes.items()
            if node["class"] == "return"
        }
        return Counter(
            Line(source, hubs.get(target, target), edge["label"].strip(), edge["style"] == "dashed")
            for source, target, edge in self.edges
            if edge["class"] not in without
        )


def words_of(label: str) -> list[str]:
    """The lines of an HTML-like label."""
    rows = (unescape(re.sub(r"<[^>]*>", "", row)) for row in label.split("</tr>"))
    return [row for row in rows if row.strip()]


def text_of(drawable: Any, suffix: str, **shown: Any) -> str:
    """What a graph, or the difference of two, renders into a file with this suffix."""
    with tempfile.TemporaryDirectory() as folder:
        path: Path = drawable.render(Path(folder) / f"picture{suffix}", **shown)
        return path.read_text(encoding="utf-8")


def drawing_of(drawable: Any, **shown: Any) -> Drawing:
    """What it draws, read from DOT."""
    read = AGraph(string=text_of(drawable, ".dot", **shown))

    def attributes(item: Any) -> Attributes:
        return {name: item.attr[name] or "" for name in ("label", "class", "style", "tooltip", "color", *PAINT)}

    return Drawing(
        read.graph_attr["label"] or "",
        {str(node): attributes(node) for node in read.nodes()},
        {body.name.removeprefix("cluster_"): {*map(str, body.nodes())} for body in read.subgraphs()},
        [(str(edge[0]), str(edge[1]), attributes(edge)) for edge in read.edges() if edge.attr["style"] != "invis"],
    )


PAINT = ("fillcolor", "fontcolor", "penwidth", "peripheries", "shape")

_MERMAID_HUB = re.compile(r'\s+(\w+)\["\N{UPWARDS ARROW} ([^"]*)"\]')
_MERMAID_EDGE = re.compile(r'  (\w+) (?:-\. "([^"]*)" \.->|-- "([^"]*)" -->|-->) (\w+)')


def mermaid_lines(text: str) -> Counter[Line]:
    text = re.sub(r"\bn\d+_", "n_", text)  # the number keeps names apart
    names = {match[1]: mermaid_name(match[2]) for line in text.splitlines() if (match := _MERMAID_HUB.fullmatch(line))}
    lines: Counter[Line] = Counter()
    for match in filter(None, map(_MERMAID_EDGE.fullmatch, text.splitlines())):
        source, dashed, solid, target = match.groups()
        lines[Line(source, names.get(target, target), dashed or solid or "", dashed is not None)] += 1
    return lines


def mermaid_name(key: str) -> str:
    return "n_" + re.sub(r"[+/]+", "_", key)


def declared_lines(graph: Graph, name: Callable[[str], str] = str, prefix: str = "") -> Counter[Line]:
    """What every picture of a graph with plain names has to show, read from the graph by hand."""

    def entry(node: str) -> str:
        return name(prefix + node + ("/+start" if graph.nodes[node].body is not None else ""))

    lines = Counter([Line(name(prefix + "+start"), entry(graph.start), "", False)])
    for source, edges in graph.edges.items():
        body = graph.nodes[source].body
        tail = name(prefix + source + ("/+end" if body is not None else ""))
        for number, edge in enumerate(edges, start=1):
            words = ([str(number)] if len(edges) > 1 else []) + ([edge.when] if edge.when else [])
            head = name(prefix + "+end") if edge.target == "end" else entry(edge.target)
            lines[Line(tail, head, " ".join(words), edge.when is not None)] += 1
        if body is not None:
            lines += declared_lines(body, name, f"{prefix}{source}/")
    return lines


# ---- where things are


class Area(NamedTuple):
    """Where something is drawn, in points; y grows upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def is_apart_from(self, frame: Area) -> bool:
        """It is inside of a frame, or outside of it, and not on its line."""
        is_inside = (
            frame.left < self.left and self.right < frame.right and frame.bottom < self.bottom and self.top < frame.top
        )
        beside = self.right < frame.left or frame.right < self.left
        return is_inside or beside or self.top < frame.bottom or frame.top < self.bottom


class Layout(NamedTuple):
    """Where Graphviz puts things: middles of nodes, frames of bodies, and the labels of edges."""

    nodes: dict[str, tuple[float, float]]
    frames: dict[str, Area]
    labels: list[tuple[str, Area]]


def layout_of(drawable: Any) -> Layout:
    drawn = AGraph(string=text_of(drawable, ".dot")).draw(format="json", prog="dot")
    read = json.loads(drawn)
    objects = read.get("objects", [])
    return Layout(
        {item["name"]: tuple(map(float, item["pos"].split(","))) for item in objects if "pos" in item},
        {
            item["name"].removeprefix("cluster_"): Area(*map(float, item["bb"].split(",")))
            for item in objects
            if "bb" in item
        },
        [text for edge in read.get("edges", ()) for text in _texts(edge)],
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
