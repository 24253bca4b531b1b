"""Proving a graph sane before it runs: every problem at once, each with a stable code."""

from __future__ import annotations

from pathlib import Path

from graphtrain.checks.guards import check_guards
from graphtrain.checks.scope import Scope
from graphtrain.checks.structure import check_structure
from graphtrain.errors import GraphError
from graphtrain.graph import Graph
from graphtrain.problem import Problem
from graphtrain.text.read import Draft, read_graph


def check_graph(graph: Graph) -> list[Problem]:
    """Every problem of the graph and of the graphs inside it; warnings it allows are left out."""
    problems: list[Problem] = []
    for scope in Scope(graph).with_inner():
        found = [*check_structure(scope), *check_guards(scope)]
        allowed = {*graph.allow, *scope.graph.allow}
        problems += [one for one in found if one.severity == "error" or one.code not in allowed]
    return problems


def checked_graph(source: Graph | str | Path) -> Graph:
    """A graph without errors.

    Raises:
        GraphError: it has some; warnings do not count.
        UsageError: there is no such graph.
    """
    draft = Draft(source, []) if isinstance(source, Graph) else read_graph(source)
    problems = draft.problems or check_graph(draft.graph)
    if any(problem.severity == "error" for problem in problems):
        raise GraphError(problems, f"graph `{draft.graph.name}`")
    return draft.graph
