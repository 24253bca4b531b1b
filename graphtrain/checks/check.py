"""The checks of a graph, in order: names and types, then guards, then everything along its paths."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from graphtrain.checks.guards import check_expressions, check_guards
from graphtrain.checks.optimizers import check_optimizers, optimizers_in
from graphtrain.checks.paths import check_paths
from graphtrain.checks.saving import check_saving
from graphtrain.checks.structure import check_start, check_structure
from graphtrain.errors import GraphError
from graphtrain.graph import EditableGraph
from graphtrain.graph.elements import Problem
from graphtrain.graph.read_toml import read_graph
from graphtrain.kind.declaration import RANKS
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import Scope, resources_of
from graphtrain.plan.slots import Slots


def check_graph(graph: EditableGraph, *, ranks: bool = False, supplied: Collection[str] | None = None) -> list[Problem]:
    """Every problem of a graph and of the graphs inside it, except those that `allow` lists.

    Checks of paths, G3xx and above, run only if names and guards have no errors.

    Arguments:
        ranks: True for a run of several ranks. Default: False, for one process, which bypasses nodes for ranks.
        supplied: the names of the resources of the run. Default: not known; what is a problem only if a resource is
            absent is then a warning.
    """
    main = Scope(graph)
    scopes = {scope.path: scope for scope in main.with_inner()}
    problems = [problem for scope in scopes.values() for problem in check_structure(scope)]
    problems += [problem for scope in scopes.values() for problem in check_expressions(scope)]
    if not _has_errors(problems):
        problems += check_guards(main)
    if not _has_errors(problems):
        problems += _along_paths(main, ranks, supplied)
    return [problem for problem in problems if not _is_allowed(problem, scopes)]


def _has_errors(problems: Iterable[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


def _is_allowed(problem: Problem, scopes: Mapping[str, Scope]) -> bool:
    """True if the graph with the problem, or the outermost one, allows it: a warning, or an error of paths."""
    path, slash, _ = problem.where.split(" ")[-1].rpartition("/")
    codes = (*scopes[""].graph.allow, *scopes.get(path + slash, scopes[""]).graph.allow)
    return problem.code in codes and (problem.severity == "warning" or problem.code >= "G3")


def _along_paths(scope: Scope, ranks: bool, supplied: Collection[str] | None) -> Iterator[Problem]:
    plan = Plan(scope.graph, scope)
    acting = [plan_node for plan_node in plan.nodes if ranks or RANKS not in resources_of(plan_node.optional)]
    unfit = list(check_optimizers(scope, acting))
    optimizers = optimizers_in(acting).keys() - {name for _, names in unfit for name in names}
    along, dividing = check_paths(plan, sorted(optimizers), ranks=ranks, supplied=supplied)
    yield from (
        *[problem for problem, _ in unfit],
        *along,
        *check_saving(plan, Slots(plan, plan.by_path.keys() - {plan_node.path for plan_node in acting})),
        *check_start(plan, ranks=ranks, supplied=supplied),
    )
    if ranks:
        from graphtrain.checks.ranks import check_ranks  # not needed for one process

        yield from check_ranks(plan, dividing)


def checked_graph(
    source: EditableGraph | str | Path, *, ranks: bool = False, supplied: Collection[str] | None = None
) -> EditableGraph:
    """The graph, or the graph read from a source, if it has no errors.

    Arguments:
        ranks, supplied: as for `check_graph`.

    Raises:
        GraphError: it has errors, not only warnings.
        UsageError: there is no such graph.
    """
    graph, unread = (source, []) if isinstance(source, EditableGraph) else read_graph(EditableGraph, source)
    problems = unread or check_graph(graph, ranks=ranks, supplied=supplied)
    if _has_errors(problems):
        raise GraphError(problems, f"graph `{graph.name}`")
    return graph
