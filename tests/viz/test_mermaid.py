from __future__ import annotations

import re
from collections import Counter

from graphtrain.graph import Graph
from graphtrain.graph.elements import Edge, Node
from graphtrain.viz.mermaid import to_mermaid
from graphtrain.viz.picture import picture
from tests.viz.viz_reading import Line, declared_lines, mermaid_lines, mermaid_name

# All that `to_mermaid` may write, line by line, with no quote and no bracket inside a text.
TEXT = r'"[^"<>\\`%\[\]{}]*(?:<br/>[^"<>\\`%\[\]{}]*)*"'
GRAMMAR = [
    r"---",
    rf"title: {TEXT}",
    r"flowchart TB",
    rf" +n_\w+[\[({{/>]+{TEXT}[\\\])}}/]+",
    rf" +subgraph n_\w+\[{TEXT}\]",
    r" +end",
    rf"  n_\w+ (?:-\. {TEXT} \.->|-- {TEXT} -->|-->) n_\w+",
    r"  classDef \w+ [\w:#,-]+",
    r"  class n_\w+(?:,n_\w+)* \w+",
]


def test_it_has_a_title_and_ends_returns_to_a_hub_in_its_name(fit: Graph) -> None:
    lines = to_mermaid(picture(fit)).splitlines()
    assert lines[:4] == [
        "---",
        'title: "fit \N{MIDDLE DOT} numbers: the order in which the edges of a node are tried"',
        "---",
        "flowchart TB",
    ]
    assert '  n_zero_grad_to1["\N{UPWARDS ARROW} decide"]' in lines
    assert "  n_zero_grad --> n_zero_grad_to1" in lines
    assert not any(
        line.endswith((" n_decide", "> n_validate_begin_evaluation")) for line in lines if "start" not in line
    )


def test_every_declared_edge_is_drawn_exactly_once_with_number_guard_and_dashes(shipped: Graph) -> None:
    expected = Counter()
    for line, count in declared_lines(shipped).items():
        expected[Line(mermaid_name(line.source), mermaid_name(line.target), line.label, line.dashed)] += count
    assert mermaid_lines(to_mermaid(picture(shipped))) == expected


def test_the_subgraph_holds_the_body(fit: Graph) -> None:
    text = to_mermaid(picture(fit))
    inside = text[text.index("subgraph n_validate[") : text.index("\n  end\n")]
    assert set(re.findall(r"^    (n_\w+?)[\[({]", inside, re.M)) == {
        *(f"n_validate_{name}" for name in Graph.load("evaluate").nodes),
        "n_validate_start",
        "n_validate_end",
    }
    assert text.count("subgraph ") == 1


def test_no_text_breaks_out(attacked: Graph) -> None:
    drawn = picture(attacked)
    text = to_mermaid(drawn)
    for line in text.splitlines():
        assert any(re.fullmatch(pattern, line) for pattern in GRAMMAR), line
    assert sum(mermaid_lines(text).values()) == len(drawn.arrows) == 9


def test_names_cannot_clash_with_words_of_the_language_or_each_other() -> None:
    names = ["graph", "subgraph", "end_", "style", "class", "default", "a b", "a_b", "a/b", "click", "x", "o"]
    graph = Graph("g", "graph", {name: Node(name, "step") for name in names}, {name: (Edge("end"),) for name in names})
    identifiers = re.findall(r"^  (\w+)\(\[", to_mermaid(picture(graph)), re.M)
    assert len(identifiers) == len(set(identifiers)) == len(names)
    assert all(name.startswith("n_") for name in identifiers)


def test_heat_and_position(fit: Graph) -> None:
    text = to_mermaid(picture(fit, counts={"decide": 100, "step": 1}, position="validate/next_batch"))
    assert "class n_decide heat10" in text
    assert "class n_validate_next_batch current" in text
    assert "100 runs" in text
    plain = to_mermaid(picture(fit))
    assert "heat" not in plain and "current" not in plain
