"""Graphs to draw: the shipped ones, and one by a stranger who means harm."""

from __future__ import annotations

import pytest

from graphtrain.graph import Graph
from graphtrain.graph.elements import Edge, Node

# Every way out of the places that hold text in DOT, HTML-like labels, SVG, CSS and Mermaid.
ATTACKS = (
    'quote" ] evil [label="x',
    "<b>bold</b><script>alert(1)</script>",
    "]]></style><img src=x onerror=alert(1)>",
    "line\nbreak\r\n  n_evil --> n_victim",
    "back\\slash \\N \\G \\",
    '`%%{init: {"theme": "dark"}}%%` #quot; &lt; ; */ {{x}}',
    "control\x00\x07\x1b[31m \u202e reversed \ud800 end",
    "<<i>html-like</i>>",
    "a:b:nw",
)


def hostile(text: str) -> Graph:
    """A graph with `text` at every place that holds text."""
    body = Graph(text, text, {text: Node(text, text)}, {text: (Edge("end", text),)}, {text: text})
    return Graph(
        name=text,
        start=text,
        nodes={
            text: Node(text, text, {text: text, "every": [text, text]}, {text: text}, {text: text}),
            "victim": Node("victim", "step", {"value": {text: [text]}}),
            text + "2": Node(text + "2", "nested", {text: text}, body=body),
        },
        edges={
            text: (Edge("victim", text), Edge(text + "2", "known"), Edge("victim")),
            "victim": (Edge(text, text), Edge("end")),
            text + "2": (Edge(text),),
        },
        guards={text: text, "known": text},
    )


@pytest.fixture(params=["fit", "evaluate"])
def shipped(request: pytest.FixtureRequest) -> Graph:
    return Graph.load(request.param)


@pytest.fixture
def fit() -> Graph:
    return Graph.load("fit")


@pytest.fixture(params=ATTACKS, ids=range(len(ATTACKS)))
def attacked(request: pytest.FixtureRequest) -> Graph:
    return hostile(request.param)
