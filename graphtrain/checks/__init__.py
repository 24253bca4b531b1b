"""Proving a graph sane before it runs: every problem at once, each with a stable code."""

from __future__ import annotations

from pathlib import Path

from graphtrain.checks.data_flow import Slots, check_data_flow
from graphtrain.checks.flow import Flow
from graphtrain.checks.gradients import check_gradients
from graphtrain.checks.guards import check_guards
from graphtrain.checks.loops import check_loops
from graphtrain.checks.saving import check_saving
from graphtrain.checks.scope import Scope
from graphtrain.checks.structure import check_structure
from graphtrain.errors import GraphError
from graphtrain.graph import Graph
from graphtrain.problem import Problem
from graphtrain.text.read import Draft, read_graph


def check_graph(graph: Graph) -> list[Problem]:
    """Every problem of the graph and of the graphs inside it; what it allows is left out.

    What follows from paths, G3xx and on, is asked of graphs whose names and guards are sound.
    """
    scopes = list(Scope(graph).with_inner())
    found = [(scope, one) for scope in scopes for one in (*check_structure(scope), *check_guards(scope))]
    if not any(one.severity == "error" for _, one in found):
        flow = Flow(scopes[0])
        slots = Slots(flow)
        whole = [*check_data_flow(flow, slots), *check_gradients(flow), *check_saving(flow, slots)]
        found += [(scopes[0], one) for one in whole]
        found += [(scope, one) for scope in scopes for one in check_loops(flow, scope)]
    return [one for scope, one in found if not _allowed(one, {*graph.allow, *scope.graph.allow})]


def _allowed(problem: Problem, codes: set[str]) -> bool:
    """True for what a graph says is meant so; what makes it no graph at all cannot be meant."""
    return problem.code in codes and (problem.severity == "warning" or problem.code >= "G3")


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
