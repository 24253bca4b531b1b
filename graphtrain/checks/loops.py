"""G5xx: a run cannot go round for ever without anything changing that decides where it goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphtrain.checks.flow import Flow
from graphtrain.checks.gradients import ON_GRADIENTS, optimizers_of
from graphtrain.checks.scope import Scope
from graphtrain.elements import END
from graphtrain.guards.syntax import Expression, FieldOf, Name, walk
from graphtrain.problem import Problem
from graphtrain.trigger import Trigger

if TYPE_CHECKING:
    import networkx


def check_loops(flow: Flow, scope: Scope) -> Iterator[Problem]:
    """Every loop of one graph that nothing in it could end."""
    import networkx

    graph = scope.graph
    network = networkx.DiGraph()
    network.add_nodes_from([*graph.nodes, END])
    network.add_edges_from((source, edge.target) for source, leaving in graph.edges.items() for edge in leaving)
    guards = flow.guards(scope)
    for part in networkx.strongly_connected_components(network):
        inside = network.subgraph(part)
        if not inside.number_of_edges():
            continue
        asked = [
            (source, edge, guards[edge.when])
            for source in part
            for edge in graph.edges.get(source, ())
            if edge.when is not None
        ]
        changing = set().union(*(changers(scope, guard) for _, _, guard in asked)) if asked else set()
        circle = _circle(inside.subgraph(part - changing))
        if circle:
            yield from _endless(scope, circle)
            continue
        ways_out = [(source, edge, guard) for source, edge, guard in asked if edge.target not in part]
        free = any(edge.when is None and edge.target not in part for source in part for edge in graph.edges[source])
        if ways_out and not free and not any(changers(scope, guard) & part for _, _, guard in ways_out):
            source, edge, _ = ways_out[0]
            names = ", ".join(f"`{one.when}`" for _, one, _ in ways_out)
            yield scope.problem(
                "G502",
                edge.place or graph.nodes[source].place,
                f"edges.{source}",
                f"the loop of {_shown(sorted(part, key=list(graph.nodes).index))} is left only if {names} holds, and "
                "nothing in the loop changes what that reads",
                "let the guard read progress of a node of the loop",
                path=tuple(_circle(inside)),
            )


def _endless(scope: Scope, circle: list[str]) -> Iterator[Problem]:
    node = scope.graph.nodes[circle[0]]
    yield scope.problem(
        "G501",
        node.place,
        f"nodes.{node.name}",
        f"the run can go round {_shown(circle[:-1])} for ever: no guard there reads anything that these nodes change",
        "lead the circle through a node whose progress a guard on it reads, such as `next_batch`, or guard an edge of it",
        path=tuple(circle),
    )


def _shown(names: list[str]) -> str:
    shown = ", ".join(f"`{one}`" for one in names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def _circle(network: networkx.DiGraph) -> list[str]:
    """A circle, back to where it begins; empty if there is none."""
    import networkx

    try:
        edges = networkx.find_cycle(network)
    except networkx.NetworkXNoCycle:
        return []
    return [edges[0][0], *(target for _, target in edges)]


def changers(scope: Scope, guard: Expression) -> set[str]:
    """The nodes of a graph whose visits may change what a guard reads."""
    found: set[str] = set()
    for one in walk(guard):
        if isinstance(one, FieldOf):
            found |= _of_field(scope, one.node, one.field)
        elif isinstance(one, Name):
            found |= _writers(scope, one.name)
    return found


def _of_field(scope: Scope, name: str, field: str) -> set[str]:
    kind = scope.kinds[name]
    if kind is None or field in kind.parameters:
        return set()
    declared = kind.fields[field]
    if declared.counts is not None:  # the engine counts it, where the effect is
        optimizers = set(optimizers_of(scope, scope.graph.nodes[name]))
        return {one for one in scope.graph.nodes if optimizers & _acted_on(scope, one)}
    if field != "due":
        return {name}
    return {name, *_clock_owners(scope, name)}


def _clock_owners(scope: Scope, name: str) -> set[str]:
    """The nodes that count the units of a node's trigger."""
    kind, node = scope.kinds[name], scope.graph.nodes[name]
    if kind is None or kind.trigger is None:
        return set()
    parameter = kind.parameters[kind.trigger]
    value = node.parameters.get(kind.trigger, parameter.default)
    trigger = parameter.coerce(value) if value is not None else None
    if not isinstance(trigger, Trigger):
        return set()
    units = scope.graph.units
    return {units[term.base.unit].partition(".")[0] for term in trigger.terms if term.base.unit in units}


def _acted_on(scope: Scope, name: str) -> set[str]:
    """The optimizers whose gradients a node, or one in its body, acts on."""
    node, kind = scope.graph.nodes[name], scope.kinds[name]
    if node.body is not None:
        inner = scope.body_of(node)
        return set().union(*(_acted_on(inner, one) for one in inner.graph.nodes))
    if kind is None or not ON_GRADIENTS & set(kind.effects):
        return set()
    return set(optimizers_of(scope, node))


def _writers(scope: Scope, slot: str) -> set[str]:
    found = set()
    for name, node in scope.graph.nodes.items():
        kind = scope.kinds[name]
        written = node.body.outputs if node.body is not None else kind.writes if kind is not None else ()
        if slot in {node.writes.get(one, one) for one in written}:
            found.add(name)
    return found
