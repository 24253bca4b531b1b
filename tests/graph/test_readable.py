"""Promise 6: what `print(graph)` shows, and the short forms of a graph and its nodes."""

from __future__ import annotations

import re
from dataclasses import replace

from graphtrain import Edge, Graph, Node

FIT = Graph.load("fit")


def line_of(graph: Graph, name: str) -> str:
    """The line on which a node of the outermost graph begins, without its spacing."""
    return " ".join(next(line for line in str(graph).splitlines() if line.startswith(f"  {name} ")).split())


def test_fit_fits_on_one_screen() -> None:
    lines = str(FIT).splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 101 and len([line for line in lines if len(line) > 80]) <= 6
    assert repr(FIT) == "<Graph fit: 15 nodes, start decide>"


def test_nodes_are_shown_with_what_the_graph_sets_and_with_their_edges() -> None:
    graph = FIT.set("accumulate", every=4).set("schedule", every=["1 steps", "2 epochs"])
    assert line_of(graph, "accumulate") == "accumulate every = 4 -> exchange if accumulation_reached, decide"
    assert line_of(graph, "step") == "step -> zero_grad"
    assert line_of(graph, "train_batch") == "train_batch reads window from accumulate.window"
    assert re.search(r"accumulate.window\n +-> accumulate\n", str(graph)), "a wide setting has a line to itself"
    assert line_of(graph, "schedule") == 'schedule every = ["1 steps", "2 epochs"] -> decide'


def test_edges_are_in_order() -> None:
    lines = [line.strip() for line in str(FIT).splitlines()]
    first = next(number for number, line in enumerate(lines) if "1. log if log_due" in line)
    assert lines[first].split()[:3] == ["decide", "choice", "->"]
    numbered = enumerate(FIT.edges["decide"][1:], start=2)
    assert lines[first + 1 : first + 8] == [f"{number}. {edge}" for number, edge in numbered]


def test_guards_clock_and_bodies_are_shown() -> None:
    text = str(FIT.set("validate/next_batch", limit=5))
    words = [line.split() for line in text.replace("guards ", " " * 7).splitlines()]
    assert all([name, *expression.split()] in words for name, expression in FIT.guards.items())
    assert all(f"{unit} = {field}" in text for unit, field in FIT.units.items())
    inside = text[text.index("graph evaluate: start begin_evaluation; outputs metrics") :]
    assert "next_batch        repeat = true, limit = 5, reads indices from val_indices, reads train_data" in inside


def test_a_graph_with_problems_is_shown() -> None:
    assert str(Graph("nothing", "a", {}, {})) == "graph nothing: start a"
    graph = Graph("odd", "a", {"a": Node("a", "made_up", {"level": 3})}, {"b": (Edge("c", "unknown"),)})
    assert str(graph).splitlines()[1:] == [
        "  a  made_up, level = 3  -> no edge",
        "  b  not declared        -> c if unknown",
    ]


def test_a_strangers_graph_commands_no_terminal() -> None:
    text = "red\x1b[31m\nnext \u202e"
    body = Graph(text, text, {text: Node(text, text)}, {text: (Edge("end", text),)}, {text: text}, {text: text})
    outer = replace(body, nodes={text: Node(text, text, {text: text}, {text: text}, {text: text}, body=body)})
    for line in (*str(outer).splitlines(), repr(outer.nodes[text])):
        assert line.isprintable()


def test_a_node_prints_what_differs_from_the_defaults() -> None:
    assert repr(FIT.nodes["step"]) == "<Node step>"
    assert repr(FIT.nodes["log"]) == '<Node log: every = "50 steps">'
    assert repr(FIT.nodes["decide"]) == "<Node decide: choice>"
    assert repr(FIT.nodes["validate"]) == '<Node validate: graph evaluate, every = "1 epochs">'
    assert repr(Node("a", "made_up", writes={"loss": "d_loss"})) == "<Node a: made_up, writes loss to d_loss>"
