"""Guards that ask whether an accumulation window is full, written out as what that field compares."""

from __future__ import annotations

from graphtrain.graph import Graph
from graphtrain.graph.elements import Node
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind import Field
from graphtrain.language.syntax import Constant, Expression, FieldOf, Operation, rebuilt


def by_count(graph: Graph, guard: Expression) -> Expression:
    """A guard in which a full window is asked for by its count and its size.

    >>> from graphtrain.language.syntax import parse
    >>> by_count(Graph.load("fit"), parse("accumulate.full")) == parse("accumulate.count >= accumulate.every")
    True
    """
    if isinstance(guard, FieldOf) and (node := graph.nodes.get(guard.node)) is not None:
        kind = kind_of_node(node)
        counter = kind.counter(guard.field) if kind is not None else None
        if counter is not None and counter.window is not None and guard.field == counter.full:
            count = FieldOf(guard.node, counter.name)
            if _has_size(node, counter) and counter.target is not None:
                return Operation(">=", (count, FieldOf(guard.node, counter.target)))
            is_full = Operation(">=", (count, FieldOf(guard.node, counter.window)))
            return Operation("and", (Operation(">", (count, Constant(0))), is_full))
    return rebuilt(guard, lambda part: by_count(graph, part))


def _has_size(node: Node, counter: Field) -> bool:
    """True if the parameter that sizes the windows of a counter has a value, which no window of 0 has."""
    kind, target = kind_of_node(node), counter.target
    if kind is None or target is None or target not in kind.parameters or target in node.reads:
        return False
    size = node.parameters.get(target, kind.parameters[target].default)
    return isinstance(size, int | float) and size > 0
