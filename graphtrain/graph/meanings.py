"""What the guards of a graph ask and what its nodes read, so that the same in other words is no difference."""

from __future__ import annotations

from contextlib import suppress

from graphtrain.graph.canonical import spaced
from graphtrain.graph.elements import Node
from graphtrain.graph.graph import Graph
from graphtrain.graph.registry import is_shipped, kind_of_node
from graphtrain.guards.syntax import (
    Both,
    Comparison,
    Constant,
    Expression,
    FieldOf,
    GuardCycleError,
    GuardSyntaxError,
    expand,
    parse,
    rebuilt,
)
from graphtrain.kind import Field, Kind


class Meanings:
    """The meanings of the texts of a graph: values that are equal to those of another graph where these are the same.

    Guards that are named are written out. Whether a window is full is asked by that field, or by its count and the
    parameter that sizes it; its size is read from either by what opens it. Both are the same where that parameter has a
    value: an expression may have another value by the time the window is full.

    >>> fit = Graph.load("fit")
    >>> other = fit.guard("window_complete", "accumulate.count >= accumulate.every or next_batch.empty")
    >>> Meanings(fit).of_guard("accumulation_reached") == Meanings(other).of_guard("accumulation_reached")
    True
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._bodies = frozenset(name for name, node in graph.nodes.items() if node.body is not None)
        self._guards: dict[str, Expression] = {}
        for name, text in graph.guards.items():
            with suppress(GuardSyntaxError):
                self._guards[name] = parse(text, self._bodies)

    def of_guard(self, name: str) -> Expression | str:
        """What a guard asks; of one that cannot be parsed, its text."""
        text = self._graph.guards[name]
        with suppress(GuardSyntaxError, GuardCycleError):
            return self.by_count(expand(parse(text, self._bodies), self._guards, (name,)))
        return spaced(text)

    def of_read(self, node: Node, name: str) -> Expression | str | tuple[str, ...]:
        """What a node reads under a name: slots by their names, what is computed by its expression."""
        target = node.reads[name]
        if not isinstance(target, str) or target.isidentifier():
            return target
        with suppress(GuardSyntaxError, GuardCycleError):
            return self.by_count(expand(parse(target, self._bodies), self._guards), node, name)
        return spaced(target)

    def by_count(self, expression: Expression, reader: Node | None = None, name: str = "") -> Expression:
        """An expression that says of windows only what they count, and their sizes: that one is full is told by both.

        Arguments:
            reader, name: the node that reads it, and under which name. Default: it is a guard.
        """
        if isinstance(expression, FieldOf) and (node := self._graph.nodes.get(expression.node)) is not None:
            kind, default = kind_of_node(node), self._graph.optimizer
            counter = kind.counter(expression.field) if kind is not None else None
            if counter is not None and counter.window is not None:
                count, size = FieldOf(expression.node, counter.name), FieldOf(expression.node, counter.window)
                is_sized = _has_size(node, counter)
                if is_sized and counter.target is not None:
                    size = FieldOf(expression.node, counter.target)
                is_full = Comparison((count, size), (">=",))
                if expression.field == counter.full:
                    return is_full if is_sized else Both((Comparison((count, Constant(0)), (">",)), is_full))
                if (
                    expression.field == counter.window
                    and reader is not None
                    and _opens(reader, name, node, counter, default)
                ):
                    return size
        return rebuilt(expression, lambda part: self.by_count(part, reader, name))


def written_in(graph: Graph) -> set[str]:
    """The names under which some node of a graph, or of a graph inside it, may write a selection of samples.

    No shipped kind writes one by itself, so that none of them is imported, which would import torch.
    """
    written: set[str] = set()
    for node in graph.nodes.values():
        if node.body is not None:
            written |= written_in(node.body)
        elif not is_shipped(node.use) and (kind := kind_of_node(node)) is not None:
            written.update(node.writes.get(slot, slot) for slot in kind.writes)
        written.update(node.writes.values())
    return written


def _has_size(node: Node, counter: Field) -> bool:
    """True if the parameter that sizes the windows of a counter has a value, which no window of 0 has."""
    kind, target = kind_of_node(node), counter.target
    if kind is None or target is None or target not in kind.parameters or target in node.reads:
        return False
    size = node.parameters.get(target, kind.parameters[target].default)
    return isinstance(size, int | float) and size > 0


def _opens(reader: Node, name: str, node: Node, counter: Field, default: str) -> bool:
    """True if a visit of a node opens a window before it reads its size: before that, no size is known."""
    kind, of_counter = kind_of_node(reader), kind_of_node(node)
    if kind is None or of_counter is None:
        return False
    opened = {_optimizer(reader, default, action.slot) for action in kind.actions if action.effect == counter.counts}
    is_read_before = any(read.name == name for read in kind.setup_reads or ())
    return not is_read_before and not _may_be_bypassed(of_counter) and _optimizer(node, default) in opened


def _may_be_bypassed(kind: Kind) -> bool:
    return bool(kind.optional or kind.idle_without)


def _optimizer(node: Node, default: str, slot: str = "optimizer") -> str | tuple[str, ...]:
    return node.reads.get(slot, default if default and slot == "optimizer" else slot)
