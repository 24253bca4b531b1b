"""Promise 5: the search for loops without an end is short, and says where it is given up."""

from __future__ import annotations

import graphtrain.checks.loops
import pytest

from graphtrain import Graph
from tests.graph.corpus import FIT, periodic


def codes(graph: Graph) -> list[tuple[str, str]]:
    return [(problem.code, problem.severity) for problem in graph.check()]


def test_a_search_that_is_given_up_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphtrain.checks.loops, "MOST_STATES", 30)
    assert codes(FIT) == [("G503", "warning")]
    monkeypatch.setattr(graphtrain.checks.loops, "MOST_STATES", 60)
    assert codes(FIT) == []


def test_activities_around_one_hub_do_not_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphtrain.checks.loops, "MOST_STATES", 60)
    graph = FIT
    for index in range(30):
        graph = periodic(graph, f"log_{index}", "log", every=f"{index + 1} steps")
    assert codes(graph) == []
