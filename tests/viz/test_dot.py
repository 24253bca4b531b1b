from __future__ import annotations

from collections.abc import Callable

import pytest

from graphtrain.graph import Graph
from graphtrain.graph.elements import Edge, Node
from graphtrain.viz.difference import difference_picture
from graphtrain.viz.dot import to_dot
from graphtrain.viz.picture import picture
from tests.viz.conftest import hostile
from tests.viz.viz_reading import declared_lines, dot_lines, hubs, read_dot, read_layout


def test_every_declared_edge_is_drawn_exactly_once_with_number_guard_and_dashes(shipped: Graph) -> None:
    assert dot_lines(to_dot(picture(shipped))) == declared_lines(shipped)


def test_expressions_are_tooltips(fit: Graph) -> None:
    edges = read_dot(to_dot(picture(fit))).edges
    tooltips = {attributes.get("label", "").strip(): attributes.get("tooltip") for _, _, attributes in edges}
    assert tooltips["1 data_exhausted"] == "data_exhausted = next_batch.exhausted"
    assert tooltips["6 finished"] == f"finished = {fit.guards['finished']}"


def test_the_cluster_holds_the_body(fit: Graph) -> None:
    inside = {f"validate/{name}" for name in Graph.load("evaluate").nodes} | {"validate/+start", "validate/+end"}
    assert read_dot(to_dot(picture(fit))).clusters == {"cluster_validate": inside}


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_the_main_line_is_drawn_straight_and_downwards(fit: Graph, nested: bool) -> None:
    outer = Graph("folds", "fold", {"fold": Node("fold", "nested", body=fit)}, {"fold": (Edge("end"),)})
    at = read_layout(to_dot(picture(outer if nested else fit))).nodes
    names = ["decide", "next_batch", "train_batch", "accumulate", "exchange", "clip", "step", "zero_grad"]
    line = [at[f"fold/{name}" if nested else name] for name in names]
    assert max(x for x, _ in line) - min(x for x, _ in line) < 2  # points
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)


def with_three_after_validate(fit: Graph) -> Graph:
    for name in ("third", "second", "first"):
        fit = fit.insert(name, "choice", after="validate")
    return fit


def with_bodies_in_bodies(fit: Graph) -> Graph:
    evaluate = Graph.load("evaluate")
    inner = Graph("inner", "sub", {"sub": Node("sub", "nested", body=evaluate)}, {"sub": (Edge("end"),)})
    return fit.insert("folds", graph=inner, after="validate").insert("warm_up", graph=evaluate, after="begin_epoch")


def with_thirty_nodes(fit: Graph) -> Graph:
    for number in range(10):
        name, due = f"side_{number}", f"due_{number}"
        fit = fit.insert(name, "choice").guard(due, "step.steps > 3")
        fit = fit.connect("decide", name, when=due).connect(name, "decide")
    for number in range(6):
        fit = fit.insert(f"chain_{number}", "choice", after="step")
    return fit


def in_a_body(fit: Graph) -> Graph:
    body = fit.insert("warm_up", graph="evaluate", after="begin_epoch")
    return Graph("folds", "fold", {"fold": Node("fold", "nested", body=body)}, {"fold": (Edge("end"),)})


def with_unreachable_nodes(fit: Graph) -> Graph:
    return fit.insert("lost", "choice").insert("more", "choice").connect("lost", "more").connect("more", "finish")


CHANGES: list[Callable[[Graph], Graph]] = [
    lambda fit: fit,
    lambda fit: fit.insert("x", "choice", before="decide"),
    with_three_after_validate,
    with_bodies_in_bodies,
    with_thirty_nodes,
    in_a_body,
    with_unreachable_nodes,
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_node_of_the_text_is_a_box_with_a_label(change: Callable[[Graph], Graph], fit: Graph) -> None:
    graph = change(fit)
    for shown in (picture(graph), difference_picture(fit.diff(graph))):
        nodes = read_dot(to_dot(shown)).nodes
        assert nodes.keys() == {box.key for box in shown.boxes if not box.is_body}
        assert all("label" in node for node in nodes.values())


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("change", CHANGES)
def test_the_start_is_on_top_and_texts_keep_off_frames(change: Callable[[Graph], Graph], fit: Graph) -> None:
    graph = change(fit)
    drawn = picture(graph)
    for shown in (drawn, difference_picture(fit.diff(graph))):
        layout = read_layout(to_dot(shown))
        for key, (_, y) in layout.nodes.items():
            level = key.rpartition("/")[0]
            while True:  # the start of its own graph, and of each one around that
                start = f"{level}/+start" if level else "+start"
                assert y <= layout.nodes[start][1], f"{key} is drawn above {start}"
                if not level:
                    break
                level = level.rpartition("/")[0]
        for words, area in layout.labels:
            for name, frame in layout.frames.items():
                assert area.is_inside(frame) or area.is_outside(frame), f"{words} lies on the frame of {name}"
    for body in drawn.bodies:
        frame, texts = layout.frames[body.key], layout.captions[body.key]
        assert texts[0][0].endswith(body.title)
        for _, area in texts:
            assert abs((area.left + area.right) - (frame.left + frame.right)) < 2, "a caption is centred"
            assert area.is_inside(frame)


@pytest.mark.full
def test_returns_to_a_hub_end_in_its_name(fit: Graph) -> None:
    drawing = read_dot(to_dot(picture(fit)))
    assert set(hubs(drawing).values()) == {"decide"}
    sources = {source for source, target, _ in drawing.edges if target in hubs(drawing)}
    assert sources == {
        "accumulate", "zero_grad", "end_epoch", "log", "validate/+end", "schedule", "checkpoint", "finish",
    }  # fmt: skip
    assert not any(target == "decide" for source, target, _ in drawing.edges if source != "+start")
    at = read_layout(to_dot(picture(fit))).nodes
    assert all(at[source][1] > at[target][1] for source, target, _ in drawing.edges if target in hubs(drawing))


@pytest.mark.full
def test_the_caption_has_the_name_and_the_legend(fit: Graph) -> None:
    words = [text for text, _ in read_layout(to_dot(picture(fit))).captions[""]]
    assert words == ["fit", "numbers: the order in which the edges of a node are tried"]
    heated = read_layout(to_dot(picture(fit, counts={"step": 3}, position="step"))).captions[""]
    assert "colour: how often a node ran" in heated[1][0] and "bold outline: runs next" in heated[1][0]
    assert "latest" not in heated[1][0]
    inside = read_layout(to_dot(picture(fit, counts={"validate": 17, "validate/eval_batch": 1}))).captions[""]
    assert "how often a node ran, in a body at its latest visit" in inside[1][0]
    plain = Graph("line", "a", {"a": Node("a", "choice")}, {"a": (Edge("end"),)})
    assert [text for text, _ in read_layout(to_dot(picture(plain))).captions[""]] == ["line"]


@pytest.mark.full
def test_heat_and_position_change_what_they_should(fit: Graph) -> None:
    plain = read_dot(to_dot(picture(fit))).nodes
    heated = read_dot(to_dot(picture(fit, counts={"decide": 100, "step": 10}))).nodes
    assert heated["decide"]["fillcolor"] != heated["step"]["fillcolor"] != heated["clip"]["fillcolor"]
    assert heated["decide"]["class"] == "choice heat10"
    assert float(heated["decide"]["penwidth"]) > float(heated["step"]["penwidth"]) > float(heated["clip"]["penwidth"])
    assert "100 runs" in heated["decide"]["label"] and "0 runs" in heated["clip"]["label"]
    marked = read_dot(to_dot(picture(fit, position="step"))).nodes
    assert {name for name in plain if plain[name] != marked[name]} == {"step"}
    assert float(marked["step"]["penwidth"]) >= 3 * float(plain["step"]["penwidth"])


@pytest.mark.second(4)
@pytest.mark.first(2)
def test_no_text_breaks_out(attacked: Graph) -> None:
    drawn = picture(attacked)
    read = read_dot(to_dot(drawn))
    assert set(read.nodes) == {box.key for box in drawn.boxes if not box.is_body}
    assert len(read.edges) == len(drawn.arrows) == 9
    assert set(read.clusters) == {f"cluster_{body.key}" for body in drawn.bodies}
    plain = read_dot(to_dot(picture(hostile("plain"))))
    known = {name for attributes in plain.nodes.values() for name in attributes}
    assert {name for attributes in read.nodes.values() for name in attributes} <= known
    labels = {name.rpartition("/")[2]: attributes["label"] for name, attributes in read.nodes.items()}
    assert "evil" not in labels and "n_victim" not in labels
