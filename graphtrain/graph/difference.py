"""The difference between two graphs, at any depth: a value that prints, and draws itself in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphtrain.graph.canonical import value_text
from graphtrain.graph.elements import GraphData, Node, is_computed, kind_text, settings_of
from graphtrain.kind.parameter import show_value
from graphtrain.printable import one_line

SIGNS: Mapping[str, str] = {"added": "+", "removed": "-", "changed": "~"}
_OF_A_NODE: tuple[str, ...] = ("kind", "parameter", "reads", "writes")
_OF_A_GRAPH: tuple[str, ...] = ("start", "outputs", "optional", "optimizer")
_ABSENT: Mapping[str, str] = {"parameter": "default", **dict.fromkeys(("reads", "writes", "optimizer"), "as named")}
_LONGEST = 160  # shown characters of a value


@dataclass(frozen=True)
class Change:
    """One difference.

    Arguments:
        category: "node", "kind", "parameter", "reads", "writes", "edge", "order" (of the edges of a node), "guard",
            "unit", or "start", "outputs", "optional", "optimizer" of a graph.
        inside: the path of the node in whose body it is; empty in the outermost graph.
        name: the name of the node, guard or unit; ``"node.parameter"``; the source of an edge.
        before: the value in the first graph, as text: of a node, its kind, edges and settings. None if absent.
        after: the value in the second graph.
    """

    category: str
    inside: str
    name: str
    before: str | None
    after: str | None

    @property
    def how(self) -> str:
        """Whether it is "added", "removed" or "changed"; a parameter that had its default is "changed"."""
        if self.category in (*_OF_A_NODE, *_OF_A_GRAPH):
            return "changed"
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    @property
    def path(self) -> str:
        """The path from the outermost graph, such as ``"validate/next_batch.limit"``."""
        return f"{self.inside}/{self.name}" if self.inside else self.name

    @property
    def subject(self) -> str:
        """What differs, such as ``"node pause"``, ``"edge step -> pause"`` or ``"finish.after"``."""
        if self.category in _OF_A_NODE:
            return self.path
        if self.category in _OF_A_GRAPH:
            return f"{self.category} of {self.inside}" if self.inside else self.category
        if self.category == "edge":
            return f"edge {self.path} -> {self.before if self.before is not None else self.after}"
        return f"order of the edges of {self.path}" if self.category == "order" else f"{self.category} {self.path}"

    @property
    def values(self) -> tuple[str, str]:
        """`before` and `after`, each on one line; ``"default"`` for a parameter that is left out."""
        values = (_ABSENT.get(self.category, "") if value is None else value for value in (self.before, self.after))
        before, after = (one_line(" ".join(value.split()), _LONGEST) for value in values)
        return before, after

    def __str__(self) -> str:
        before, after = self.values
        if self.how != "changed":
            return f"{one_line(self.subject)} {self.how}"
        return f"{one_line(self.subject)} {before} -> {after}"


@dataclass(frozen=True, repr=False)
class Difference:
    """How two graphs differ in what they do; false if they do the same. Names of graphs and `allow` do not count.

    Attributes:
        before: the first graph.
        after: the second.
        changes: every difference, the outermost graph first, in the order nodes, edges, guards, clock, the rest.

    >>> from graphtrain import Graph
    >>> fit = Graph.load("fit")
    >>> difference = fit.diff(fit.set("finish", after="20 epochs").insert("pause", "choice", after="step"))
    >>> print(difference)
    ~ finish.after 10 epochs -> 20 epochs
    + node pause (choice -> zero_grad)
    - edge step -> zero_grad
    + edge step -> pause
    >>> [change.path for change in difference.changes if change.how == "added"], bool(fit.diff(fit))
    (['pause', 'step'], False)
    """

    before: GraphData
    after: GraphData
    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        if not self.changes:
            return "no difference"
        lines = []
        for change in self.changes:
            details = {"node": " ({})", "guard": " = {}", "unit": " = {}"}.get(change.category, "")
            words = one_line(change.subject) + details.format("".join(change.values))
            lines.append(f"{SIGNS[change.how]} {change if change.how == 'changed' else words}")
        return "\n".join(lines)

    __repr__ = __str__


def changes(before: GraphData, after: GraphData, inside: str = "") -> Iterator[Change]:
    """The changes between two graphs; `inside` is their path."""
    for name in dict.fromkeys([*after.nodes, *before.nodes]):
        old, new = before.nodes.get(name), after.nodes.get(name)
        if old is not None and new is not None:
            yield from _of_node(old, new, inside)
        else:
            yield Change("node", inside, name, _described(before, old), _described(after, new))
    for source in dict.fromkeys([*after.edges, *before.edges]):
        if (source in before.nodes) != (source in after.nodes):
            continue  # edges of a node that only one graph has are described with the node
        former, edges = before.edges.get(source, ()), after.edges.get(source, ())
        yield from (Change("edge", inside, source, str(edge), None) for edge in former if edge not in edges)
        yield from (Change("edge", inside, source, None, str(edge)) for edge in edges if edge not in former)
        order = ", ".join(str(edge) for edge in former if edge in edges)
        new_order = ", ".join(str(edge) for edge in edges if edge in former)
        if order != new_order:
            yield Change("order", inside, source, order, new_order)
    for category, table, other in (("guard", before.guards, after.guards), ("unit", before.units, after.units)):
        for name in dict.fromkeys([*other, *table]):
            if table.get(name) != other.get(name):
                yield Change(category, inside, name, table.get(name), other.get(name))
    for category in _OF_A_GRAPH:
        value, new_value = (_words(getattr(graph, category)) or None for graph in (before, after))
        if value != new_value:
            yield Change(category, inside, category, value, new_value)
    for name, node in before.nodes.items():
        if node.body is not None and name in after.nodes and (body := after.nodes[name].body) is not None:
            yield from changes(node.body, body, f"{inside}/{name}" if inside else name)


def _of_node(before: Node, after: Node, inside: str) -> Iterator[Change]:
    """The changed settings of a node. An expression is compared with the value that it replaces."""
    settings = [
        {"use": node.use, **node.parameters, **node.reads, **{f"writes.{slot}": to for slot, to in node.writes.items()}}
        for node in (before, after)
    ]
    for name in dict.fromkeys([*settings[1], *settings[0]]):
        values = [each[name] for each in settings if name in each]
        if len(values) == 1 or value_text(values[0]) != value_text(values[1]):
            category = {"use": "kind", "writes": "writes"}.get(name.partition(".")[0], "parameter")
            targets = [node.reads[name] for node in (before, after) if name in node.reads]
            path = f"{after.name}.{name}"
            if len(targets) == len(values) and not any(map(is_computed, targets)):
                category, path = "reads", f"{after.name}.reads.{name}"
            value, new_value = (_words(each[name]) if name in each else None for each in settings)
            yield Change(category, inside, path, value, new_value)


def _words(value: Any) -> str:
    """The text of a value, or of the names that a node reads."""
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    return value if isinstance(value, str) else show_value(value)


def _described(graph: GraphData, node: Node | None) -> str | None:
    if node is None:
        return None
    kind, edges = kind_text(node) or node.use, ", ".join(map(str, graph.edges.get(node.name, ())))
    return "; ".join(filter(None, [f"{kind} -> {edges}" if edges else kind, ", ".join(settings_of(node))]))
