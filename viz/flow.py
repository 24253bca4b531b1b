"""How a graph flows: the edges that close its loops, and the line a reader follows first."""

from __future__ import annotations

from collections import Counter

from graphtrain.graph import Graph
from graphtrain.graph.elements import END

Place = tuple[str, int]  # a source, and the position of an edge among those of the source

FEWEST_RETURNS = 3  # of a hub; two arrows back are easier to follow than two names


def back_edges(graph: Graph) -> frozenset[Place]:
    """The edges that lead to a node on the path from the start to their source: without them there is no cycle.

    Depth first from the start, then from what the start does not reach; the last edge of a node, which is taken where
    no guard holds, goes first, so that the ordinary course of things is what runs downwards.

    >>> sorted(back_edges(Graph.load("evaluate")))
    [('eval_batch', 1)]
    """
    found: set[Place] = set()
    done: set[str] = set()
    for root in (graph.start, *graph.edges):
        if root in done:
            continue
        path = [root]
        open_edges = {root: _reversed_edges(graph, root)}
        while path:
            source = path[-1]
            if not open_edges[source]:
                done.add(path.pop())
                del open_edges[source]
                continue
            position, target = open_edges[source].pop(0)
            if target in open_edges:
                found.add((source, position))
            elif target not in done and target != END:
                path.append(target)
                open_edges[target] = _reversed_edges(graph, target)
    return frozenset(found)


def _reversed_edges(graph: Graph, source: str) -> list[tuple[int, str]]:
    return [(position, edge.target) for position, edge in enumerate(graph.edges.get(source, ()))][::-1]


def returns(graph: Graph, back: frozenset[Place]) -> frozenset[Place]:
    """The edges that a picture ends in the name of their target: those that return to a hub, and those past a body.

    A hub is a node to which several nodes return by their only edge, which would become one bundle. An edge past a body
    would run along its border.

    >>> fit = Graph.load("fit")
    >>> {fit.edges[source][position].target for source, position in returns(fit, back_edges(fit))}
    {'decide'}
    """
    targets = {(source, position): graph.edges[source][position].target for source, position in back}
    count = Counter(target for (source, _), target in targets.items() if len(graph.edges[source]) == 1)
    return frozenset(
        (source, position)
        for (source, position), target in targets.items()
        if source != target and (count[target] >= FEWEST_RETURNS or _has_body_between(graph, back, target, source))
    )


def _has_body_between(graph: Graph, back: frozenset[Place], first: str, last: str) -> bool:
    """True if a node with a body lies on a way from one node to another, by no edge that leads back."""

    def onward(source: str) -> set[str]:
        found, waiting = {source}, [source]
        while waiting:
            current = waiting.pop()
            edges = enumerate(graph.edges.get(current, ()))
            new = {edge.target for position, edge in edges if (current, position) not in back} - found
            found |= new
            waiting += new
        return found

    bodies = {name for name, node in graph.nodes.items() if node.body is not None} - {first, last}
    return any(last in onward(name) for name in onward(first) & bodies)


def main_line(graph: Graph, back: frozenset[Place]) -> tuple[Place, ...]:
    """The edges that a picture draws as one straight line: from the start, always the last edge that leads on.

    >>> fit = Graph.load("fit")
    >>> [source for source, _ in main_line(fit, back_edges(fit))]
    ['decide', 'next_batch', 'train_batch', 'accumulate', 'exchange', 'clip', 'step']
    """
    line: list[Place] = []
    source: str | None = graph.start
    while source is not None:
        onward = [p for p, target in _reversed_edges(graph, source) if target != END and (source, p) not in back]
        if onward:
            line.append((source, onward[0]))
        source = graph.edges[source][onward[0]].target if onward else None
    return tuple(line)
