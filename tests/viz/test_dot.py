from __future__ import annotations

import pytest

from graphtrain.graph import Graph
from graphtrain.graph.elements import Edge, Node
from graphtrain.viz.dot import to_dot
from graphtrain.viz.picture import picture
from tests.viz.conftest import hostile
from tests.viz.viz_reading import declared_lines, dot_lines, read_dot


def test_every_declared_edge_is_drawn_exactly_once_with_number_guard_and_dashes(shipped: Graph) -> None:
    assert dot_lines(to_dot(picture(shipped))) == declared_lines(shipped)


def test_an_edited_graph_changes_the_drawing_by_its_edit(fit: Graph) -> None:
    edited = fit.connect("zero_grad", "log", when="log_due")
    assert dot_lines(to_dot(picture(edited))) == declared_lines(edited)


def test_expressions_are_tooltips(fit: Graph) -> None:
    edges = read_dot(to_dot(picture(fit))).edges
    tooltips = {attributes.get("label", "").strip(): attributes.get("tooltip") for _, _, attributes in edges}
    assert tooltips["1 data_exhausted"] == "data_exhausted = next_batch.exhausted"
    assert tooltips["6 finished"] == f"finished = {fit.guards['finished']}"


def test_the_cluster_holds_the_body(fit: Graph) -> None:
    inside = {f"validate/{name}" for name in Graph.load("evaluate").nodes} | {"validate/+end"}
    assert read_dot(to_dot(picture(fit))).clusters == {"cluster_validate": inside}


def places(text: str) -> dict[str, tuple[float, float]]:
    """Where Graphviz puts the middle of every node; y grows upwards."""
    return {name: tuple(map(float, attributes["pos"].split(","))) for name, attributes in read_dot(text).nodes.items()}


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_the_main_line_is_drawn_straight_and_downwards(fit: Graph, nested: bool) -> None:
    outer = Graph("folds", "fold", {"fold": Node("fold", "nested", body=fit)}, {"fold": (Edge("end"),)})
    at = places(to_dot(picture(outer if nested else fit)))
    names = ["decide", "next_batch", "train_batch", "accumulate", "clip", "step", "zero_grad"]
    line = [at[f"fold/{name}" if nested else name] for name in names]
    assert max(x for x, _ in line) - min(x for x, _ in line) < 2  # points
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)


def test_clusters_stand_below_what_leads_into_them(fit: Graph) -> None:
    at = places(to_dot(picture(fit)))
    assert all(at[name][1] < at["decide"][1] for name in at if name.startswith("validate/"))


def test_families_differ_in_colour_and_in_shape(fit: Graph) -> None:
    nodes = read_dot(to_dot(picture(fit))).nodes
    looks = {(nodes[name]["shape"], nodes[name]["fillcolor"]) for name in fit.nodes if fit.nodes[name].body is None}
    assert len(looks) == len({shape for shape, _ in looks}) == len({colour for _, colour in looks}) == 7


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


def test_no_text_breaks_out(attacked: Graph) -> None:
    drawn = picture(attacked)
    read = read_dot(to_dot(drawn))
    assert set(read.nodes) == {box.key for box in drawn.boxes}
    assert len(read.edges) == len(drawn.arrows) == 8
    assert set(read.clusters) == {f"cluster_{cluster.node.key}" for cluster in drawn.clusters}
    plain = read_dot(to_dot(picture(hostile("plain"))))
    known = {name for attributes in plain.nodes.values() for name in attributes}
    assert {name for attributes in read.nodes.values() for name in attributes} <= known
    labels = {name.rpartition("/")[2]: attributes["label"] for name, attributes in read.nodes.items()}
    assert "evil" not in labels and "n_victim" not in labels


@pytest.mark.parametrize(
    "graph", [Graph("nothing", "a", {}, {}), Graph("", "end", {"a": Node("a", "step")}, {"a": (Edge("end"),)})]
)
def test_nearly_empty_graphs(graph: Graph) -> None:
    assert "+start" in read_dot(to_dot(picture(graph))).nodes
