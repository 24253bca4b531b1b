"""Promise 5: a check takes a moment, and says where it is given up."""

from __future__ import annotations

import pytest

import graphtrain.checks.exploration
from graphtrain import Graph
from tests.graph.corpus import FIT, periodic


def codes(graph: Graph) -> list[tuple[str, str]]:
    return [(problem.code, problem.severity) for problem in graph.check()]


def test_an_exploration_that_is_given_up_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphtrain.checks.exploration, "MOST_STATES", 30)
    assert codes(FIT) == [("G503", "warning")]
    monkeypatch.setattr(graphtrain.checks.exploration, "MOST_STATES", 1_000)
    assert codes(FIT) == []


def test_activities_around_one_hub_do_not_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphtrain.checks.exploration, "MOST_STATES", 4_000)
    graph = FIT
    for index in range(30):
        graph = periodic(graph, f"log_{index}", "log", every=f"{index + 1} steps")
    assert codes(graph) == []
