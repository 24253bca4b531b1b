"""Checks a graph before it runs: every problem at once, each with a stable code."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from graphtrain.checks.codes import can_be_allowed
from graphtrain.checks.data_flow import check_data_flow
from graphtrain.checks.endings import check_endings
from graphtrain.checks.guards import check_expressions, check_guards
from graphtrain.checks.optimizers import check_optimizers, optimizers_in
from graphtrain.checks.paths import check_paths
from graphtrain.checks.saving import check_saving
from graphtrain.checks.structure import check_start, check_structure
from graphtrain.errors import GraphError
from graphtrain.graph import Graph
from graphtrain.graph.elements import Problem
from graphtrain.graph.read_toml import read_graph
from graphtrain.plan.flow import Flow
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import Scope
from graphtrain.plan.slots import Slots


def check_graph(
    graph: Graph,
    *,
    ranks: bool = False,
    supplied: Collection[str] | None = None,
) -> list[Problem]:
    """Every problem of the graph and of the graphs inside it, except those that it allows.

    Checks of paths, G3xx and above, are made only if names and guards are sound.

    Arguments:
        ranks: True for a run of several ranks. Default: False, for one process, where nodes for several ranks are
            bypassed.
        supplied: the names of the resources of the run; all others are absent. Default: not known, and problems that
            need an absent resource are warnings.
    """
    scopes = list(Scope(graph).with_inner())
    problems = [
        (scope, problem)
        for scope in scopes
        for problem in (
            *check_structure(scope),
            *check_guards(scope),
            *check_expressions(scope),
        )
    ]
    if not any(problem.severity == "error" for _, problem in problems):
        by_path = {scope.path: scope for scope in scopes}
        problems += [(by_path[path], problem) for path, problem in _along_paths(scopes[0], ranks, supplied)]
    return [
        problem
        for scope, problem in problems
        if problem.code not in (*graph.allow, *scope.graph.allow)
        or (problem.severity == "error" and not can_be_allowed(problem.code))
    ]


def _along_paths(scope: Scope, ranks: bool, supplied: Collection[str] | None) -> Iterator[tuple[str, Problem]]:
    """The problems of paths, each with the path of the graph in which it is."""
    plan = Plan(scope.graph, scope)
    acting = [plan_node for plan_node in plan.nodes if ranks or not plan_node.needs_ranks]
    flow = Flow(plan, plan.by_path.keys() - {plan_node.path for plan_node in acting})
    slots = Slots(flow)
    unfit = list(check_optimizers(scope, acting))
    optimizers = optimizers_in(acting).keys() - {name for _, names in unfit for name in names}
    along, dividing = check_paths(plan, sorted(optimizers), ranks=ranks, supplied=supplied)
    is_endless = any(problem.code == "G501" and problem.severity == "error" for problem in along)
    problems = [
        *check_data_flow(slots),
        *(problem for problem, _ in unfit),
        *along,
        *(check_endings(plan) if not is_endless else ()),
        *check_saving(slots),
        *check_start(plan, ranks=ranks, supplied=supplied),
    ]
    if ranks:
        from graphtrain.checks.ranks import check_ranks  # not needed for one process

        problems += check_ranks(flow, dividing)
    for problem in problems:
        path, slash, _ = problem.where.split(" ")[-1].rpartition("/")
        yield path + slash, problem


def checked_graph(source: Graph | str | Path, *, ranks: bool = False, supplied: Collection[str] | None = None) -> Graph:
    """A graph without errors.

    Arguments:
        ranks, supplied: as for `check_graph`.

    Raises:
        GraphError: it has errors; warnings do not count.
        UsageError: there is no such graph.
    """
    graph, unread = (source, []) if isinstance(source, Graph) else read_graph(Graph, source)
    problems = unread or check_graph(graph, ranks=ranks, supplied=supplied)
    if any(problem.severity == "error" for problem in problems):
        raise GraphError(problems, f"graph `{graph.name}`")
    return graph
