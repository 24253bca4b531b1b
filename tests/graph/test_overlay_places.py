"""Overlays of a graph that nests the one they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphtrain import Graph, GraphError
from graphtrain.graph.registry import known_overlays

FIT = Graph.load("fit")
ROUNDS = Graph.loads(
    """
    format = 1
    name = "rounds"
    start = "fit"
    nodes.fit = { graph = "fit" }
    nodes.decide = { use = "choice" }
    guards.enough = "fit.runs >= 2"
    edges.fit = ["decide"]
    edges.decide = ["end if enough", "fit"]
    """
)


def body(graph: Graph, *path: str) -> Graph:
    for name in path:
        inner = graph.nodes[name].body
        assert inner is not None
        graph = inner
    return graph


@pytest.mark.parametrize("name", [name for name in known_overlays() if name != "sanity"])
def test_an_overlay_is_added_to_the_nested_graph_that_has_its_nodes(name: str) -> None:
    graph = ROUNDS.overlay(name)
    assert body(graph, "fit") == FIT.overlay(name) != FIT
    assert graph.set("fit", graph=FIT) == ROUNDS, "and nothing to the graph around it"
    assert graph.layers.names == body(graph, "fit").layers.names == (name,)


def test_what_the_outer_graph_has_is_meant_there() -> None:
    """`sanity` needs only the node `decide`, which both have."""
    graph = ROUNDS.overlay("sanity")
    assert "sanity" in graph.nodes and body(graph, "fit") == FIT


def test_at_any_depth_in_any_order_and_with_each_other(tmp_path: Path) -> None:
    patient = tmp_path / "patient.toml"
    patient.write_text('format = 1\n[[edit]]\nset = "early_stop"\npatience = 7\n')
    outermost = ROUNDS.set("fit", graph=ROUNDS)
    expected = FIT.overlay("early_stop", patient, "carry")
    for overlays in (("early_stop", patient, "carry"), ("carry", "early_stop", patient)):
        graph = outermost.overlay(*overlays)
        assert body(graph, "fit", "fit") == expected
        assert set(graph.layers.names) == {"early_stop", "patient", "carry"}
    assert outermost.overlay("early_stop").overlay(patient).overlay("carry") == graph


def test_what_fits_two_nested_graphs_is_refused() -> None:
    two = ROUNDS.nest("second", FIT).redirect("fit", "decide", "second").connect("second", "decide")
    with pytest.raises(GraphError, match=r"overlay `ema` fits several nested graphs: `fit`, `second`"):
        two.overlay("ema")


def test_what_fits_nowhere_is_reported_as_ever(tmp_path: Path) -> None:
    lost = tmp_path / "lost.toml"
    lost.write_text('format = 1\n[[edit]]\nset = "optimise"\nx = 1\n')
    with pytest.raises(GraphError, match=r"overlay `lost`: .*`optimise`"):
        ROUNDS.overlay(lost)


def test_overlays_of_a_nested_graph_go_with_those_that_it_has() -> None:
    nested = ROUNDS.set("fit", graph=FIT.overlay("drop"))
    with pytest.raises(GraphError, match="overlays `drop` and `carry` do not compose"):
        nested.overlay("carry")


def test_an_overlay_that_the_nested_graph_has_is_not_added_again() -> None:
    with pytest.raises(GraphError, match="the graph `fit` already has the overlay `ema`"):
        ROUNDS.set("fit", graph=FIT.overlay("ema")).overlay("ema")
