from __future__ import annotations

import subprocess
import sys

import pytest

from graphtrain.graph import Graph
from graphtrain.graph.elements import Edge, Node
from graphtrain.viz.picture import Box, Picture, back_edges, picture


def boxes(drawn: Picture) -> dict[str, Box]:
    return {box.key: box for box in drawn.boxes}


def test_back_edges_are_those_without_which_no_loop_is_left(shipped: Graph) -> None:
    back = back_edges(shipped)
    onward = {
        source: {edge.target for position, edge in enumerate(edges) if (source, position) not in back}
        for source, edges in shipped.edges.items()
    }
    while True:  # what leads nowhere any more is on no loop
        ends = {source for source, targets in onward.items() if not targets & onward.keys()}
        if not ends:
            break
        onward = {source: targets for source, targets in onward.items() if source not in ends}
    assert onward == {}


def test_a_hub_is_found_by_what_returns_to_it() -> None:
    edges = {"a": (Edge("b"),), "b": (Edge("c", "x"), Edge("d", "y"), Edge("e", "z"), Edge("end"))}
    edges |= {"c": (Edge("b"),), "d": (Edge("end"),), "e": (Edge("b"),)}
    nodes = {name: Node(name, "choice") for name in edges}
    two = picture(Graph("g", "a", nodes, edges))
    assert not any(arrow.returns_by for arrow in two.arrows)
    three = picture(Graph("g", "a", nodes, {**edges, "d": (Edge("b"),)}))
    assert {arrow.source: arrow.returns_by for arrow in three.arrows if arrow.returns_by} == {
        "c": "c+to1", "d": "d+to1", "e": "e+to1",
    }  # fmt: skip
    assert {(box.title, box.family) for box in three.boxes if "+to" in box.key} == {("b", "return")}
    assert next(arrow for arrow in three.arrows if arrow.source == "a").returns_by == "", "a comes before b"


def test_nested_graphs_are_clusters(fit: Graph) -> None:
    drawn = picture(fit)
    (body,) = drawn.bodies
    assert body.key == "validate"
    assert body.lines == ("evaluate", "every = 1 epochs")
    assert {box.key for box in drawn.boxes if box.inside == "validate"} == {
        *(f"validate/{name}" for name in Graph.load("evaluate").nodes),
        "validate/+start",
        "validate/+end",
    }
    into = next(arrow for arrow in drawn.arrows if arrow.target == "validate")
    out = next(arrow for arrow in drawn.arrows if arrow.source == "validate")
    ends = {arrow: (tail, head) for arrow, tail, head in drawn.ends()}
    assert (ends[into][1], ends[out][0]) == ("validate/+start", "validate/+end")


def test_labels_tell_kind_and_parameters(fit: Graph) -> None:
    drawn = boxes(picture(fit.set("clip", max_norm=0.5)))
    assert drawn["decide"].lines == ("choice",)
    assert drawn["clip"].lines == ("max_norm = 0.5",)
    assert drawn["checkpoint"].lines == ("every = 1 epochs or 10 minutes", "keep = 2")
    assert "window is accumulate.window" in drawn["train_batch"].tooltip


def test_many_and_long_parameters_are_shortened() -> None:
    node = Node(
        "a", "mine", {"text": "x" * 500, "table": {"k": list(range(1000))}, "three": 3, "four": 4, "five": True}
    )
    box = boxes(picture(Graph("g", "a", {"a": node}, {"a": (Edge("end"),)})))["a"]
    assert box.lines[0] == "mine"
    assert box.lines[1].startswith("text = xxx") and box.lines[1].endswith("…")
    assert box.lines[-1] == "and 2 more"
    four = boxes(picture(Graph("g", "a", {"a": Node("a", "a", dict.fromkeys("bcde", 1))}, {"a": (Edge("end"),)})))
    assert four["a"].lines == ("b = 1", "c = 1", "d = 1", "e = 1"), "a line that says `1 more` could be that one"
    assert max(map(len, box.lines)) <= 32
    assert len(box.tooltip) <= 400


def test_heat_is_logarithmic_and_missing_counts_are_zero(fit: Graph) -> None:
    drawn = boxes(picture(fit, counts={"decide": 999, "step": 30, "validate": 2, "validate/next_batch": 7, "gone": 5}))
    assert drawn["decide"].heat == 1.0
    assert 0.4 < drawn["step"].heat < 0.6
    assert (drawn["clip"].runs, drawn["clip"].heat) == (0, 0.0)
    assert (drawn["validate/next_batch"].runs, drawn["next_batch"].runs, drawn["validate"].runs) == (7, 0, 2)
    assert drawn["+start"].runs is None


def test_what_a_run_bypasses_is_pale_and_says_so(fit: Graph) -> None:
    drawn = boxes(picture(fit, counts={"step": 3}, bypassed=["exchange", "validate"]))
    assert {key for key, box in drawn.items() if box.lines[-1:] == ("bypassed",)} == {"exchange", "validate"}
    pale = {key for key, box in drawn.items() if box.mark == "same"}
    assert pale == {"exchange", "validate", *(f"validate/{name}" for name in Graph.load("evaluate").nodes)}
    assert drawn["exchange"].runs is None and drawn["clip"].runs == 0


def test_nodes_name_their_optimizer_and_step_function_where_there_are_several(fit: Graph) -> None:
    drawn = boxes(picture(Graph.load("gan")))
    assert drawn["train_batch"].lines == ("only_own = true", "critic_optimizer", "critic_loss")
    assert drawn["generate"].lines[-2:] == ("generator_optimizer", "generator_loss")
    assert drawn["step"].lines == ("critic_optimizer",) and drawn["generator_step"].lines[-1] == "generator_optimizer"
    assert boxes(picture(fit))["step"].lines == (), "there is one"


def test_position_marks_one_box(fit: Graph) -> None:
    for path in ("step", "validate", "validate/next_batch"):
        assert [key for key, box in boxes(picture(fit, position=path)).items() if box.current] == [path]
    assert not any(box.current for box in picture(fit, position="gone").boxes)


def test_graphs_with_problems_are_drawn() -> None:
    nothing = picture(Graph("nothing", "a", {}, {}))
    assert [box.key for box in nothing.boxes] == ["+start", "a"]
    dangling = picture(Graph("dangling", "end", {"a": Node("a", "step")}, {"b": (Edge("c", "unknown"),)}))
    assert {box.key: box.lines for box in dangling.boxes if not box.is_mark} == {
        "a": ("step",),
        "b": ("not declared",),
        "c": ("not declared",),
    }
    assert [arrow.expression for arrow in dangling.arrows if arrow.guard == "unknown"] == [None]


def test_keys_are_distinct_for_names_that_look_like_paths_and_marks() -> None:
    names = ["a/b", "a", "+end", "", "a+2Fb"]
    body = Graph("body", "b", {"b": Node("b", "step")}, {"b": (Edge("end"),)})
    nodes = {name: Node(name, "step") for name in names} | {"a": Node("a", "nested", body=body)}
    drawn = picture(Graph("g", "a", nodes, {name: (Edge("end"),) for name in names}))
    keys = [box.key for box in drawn.boxes]
    assert len(keys) == len(set(keys)) == len(names) + 2 + 3  # two marks outside, `b` and two inside


@pytest.mark.full
def test_drawing_imports_no_torch_and_no_networkx() -> None:
    program = (
        "import sys\n"
        "from graphtrain.graph import Graph\n"
        "import graphtrain.viz, graphtrain.viz.picture, graphtrain.viz.dot, graphtrain.viz.mermaid\n"
        "import graphtrain.viz.render, graphtrain.viz.theme\n"
        "from graphtrain.viz.render import draw\n"
        "assert 'graphviz' not in sys.modules\n"
        "graphtrain.viz.svg(Graph.load('fit'))\n"
        "heavy = {'torch', 'networkx', 'numpy', 'pygraphviz'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
