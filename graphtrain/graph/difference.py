"""The difference between two graphs, at any depth: a value that prints, and draws itself in a notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from graphtrain.graph.canonical import spaced, value_text
from graphtrain.graph.elements import Drawable, Edge, Node, is_computed, kind_text
from graphtrain.kind.parameter import show_value
from graphtrain.printable import one_line

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph

What = Literal[
    "node", "kind", "parameter", "reads", "writes", "edge", "order", "guard", "unit",
    "start", "outputs", "optional", "allow", "optimizer", "name",
]  # fmt: skip
How = Literal["added", "removed", "changed"]

_SIGNS: Mapping[str, str] = {"added": "+", "removed": "-", "changed": "~"}
_OF_A_NODE: tuple[What, ...] = ("kind", "parameter", "reads", "writes")
_OF_A_GRAPH: tuple[What, ...] = ("start", "outputs", "optional", "allow", "optimizer", "name")
_LONGEST = 160  # shown characters of a value


@dataclass(frozen=True)
class Change:
    """One difference.

    Arguments:
        what: a node, its kind, a parameter, what it reads or writes, an edge, the order of the edges of a node, a
            guard, a unit of the clock, or another part of a graph.
        inside: the path of the node in whose body it is; empty in the outermost graph.
        name: of the node, the guard or the unit; ``"node.parameter"``; the source of an edge.
        before: its value in the first graph, in words; None if it has none.
        after: its value in the second.
        matters: False if the graph does the same: a name, `allow`, the spacing of a guard.
        independent: False for an edge that was added or removed with its node.
    """

    what: What
    inside: str
    name: str
    before: str | None
    after: str | None
    matters: bool = True
    independent: bool = True

    @property
    def how(self) -> How:
        """ "added", "removed" or "changed"; a parameter that was at its default is changed."""
        if self.what in (*_OF_A_NODE, *_OF_A_GRAPH):
            return "changed"
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    @property
    def path(self) -> str:
        """The path from the outermost graph: ``"validate/next_batch.limit"``."""
        return f"{self.inside}/{self.name}" if self.inside else self.name

    @property
    def subject(self) -> str:
        """Its subject: ``"node pause"``, ``"edge step -> pause"``, ``"finish.after"``."""
        if self.what in _OF_A_NODE:
            return self.path
        if self.what in _OF_A_GRAPH:
            return f"{self.what} of {self.inside}" if self.inside else self.what
        if self.what == "edge":
            return f"edge {self.path} -> {self.before if self.before is not None else self.after}"
        return f"order of the edges of {self.path}" if self.what == "order" else f"{self.what} {self.path}"

    @property
    def values(self) -> tuple[str, str]:
        """Before and after, each on one line; ``"default"`` for a parameter that is not given."""
        absent = {"parameter": "default", "reads": "as named", "writes": "as named", "optimizer": "as named"}
        values = (absent.get(self.what, "") if value is None else value for value in (self.before, self.after))
        before, after = (one_line(" ".join(value.split()), _LONGEST) for value in values)
        return before, after

    def __str__(self) -> str:
        before, after = self.values
        if self.what == "guard" and not self.matters and self.how == "changed":
            return one_line(f"spacing of {self.subject}")
        if self.how == "changed":
            arrow = f"now -> {after}" if self.what == "edge" else f"{before} -> {after}"
            return f"{one_line(self.subject)} {arrow}"
        return f"{one_line(self.subject)} {self.how}"


@final
@dataclass(frozen=True)
class Difference(Drawable):
    """The differences between two graphs; false if there are none.

    Attributes:
        before: the first graph.
        after: the second.
        changes: every difference, the outermost graph first, in the order nodes, edges, guards, clock, the rest.

    >>> from graphtrain.graph import Graph
    >>> fit = Graph.load("fit")
    >>> difference = fit.diff(fit.set("finish", after="20 epochs").insert("pause", "choice", after="step"))
    >>> print(difference)
    ~ finish.after 10 epochs -> 20 epochs
    + node pause (choice)
    ~ edge step -> zero_grad now -> pause
    + edge pause -> zero_grad
    >>> [change.path for change in difference.added], bool(difference), bool(fit.diff(fit))
    (['pause', 'pause'], True, False)
    """

    before: Graph
    after: Graph
    changes: tuple[Change, ...]

    @classmethod
    def between(cls, before: Graph, after: Graph) -> Difference:
        """The difference of two graphs; see `Graph.diff`."""
        return cls(before, after, tuple(_changes(before, after, "")))

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def added(self) -> tuple[Change, ...]:
        """The changes that add something."""
        return tuple(change for change in self.changes if change.how == "added")

    @property
    def removed(self) -> tuple[Change, ...]:
        """The changes that remove something."""
        return tuple(change for change in self.changes if change.how == "removed")

    @property
    def changed(self) -> tuple[Change, ...]:
        """The changes of something that both have."""
        return tuple(change for change in self.changes if change.how == "changed")

    @property
    def matters(self) -> bool:
        """True if the two graphs do different things; names, spacing and silenced checks do not count."""
        return any(change.matters for change in self.changes)

    def __str__(self) -> str:
        if not self.changes:
            return "no difference"
        lines = []
        for change in self.changes:
            details = {"node": " ({})", "guard": " = {}", "unit": " = {}"}.get(change.what, "")
            # The sign stands for the verb.
            words = one_line(change.subject) + details.format("".join(change.values))
            lines.append(f"{_SIGNS[change.how]} {change if change.how == 'changed' else words}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        counts = [f"{len(getattr(self, how))} {how}" for how in _SIGNS]
        return f"<Difference {self.before.name} -> {self.after.name}: {', '.join(counts)}>"

    def render(self, path: str | Path) -> Path:
        """Draw both graphs into a file, in one picture; with the formats and errors of `Graph.render`."""
        return self._drawn_into(path)


# ---- comparing


def _changes(before: Graph, after: Graph, inside: str) -> Iterator[Change]:
    bodies = []
    for name in dict.fromkeys([*after.nodes, *before.nodes]):
        old, new = before.nodes.get(name), after.nodes.get(name)
        if old is None or new is None:
            yield Change("node", inside, name, _described(old), _described(new))
            continue
        yield from _node_changes(old, new, inside)
        if old.body is not None and new.body is not None:
            bodies.append((name, old.body, new.body))
    for source in dict.fromkeys([*after.edges, *before.edges]):
        independent = (source in before.nodes) == (source in after.nodes)
        edges = before.edges.get(source, ()), after.edges.get(source, ())
        for pair in paired_edges(*edges):
            former, latter = (None if edge is None else str(edge) for edge in pair)
            yield Change("edge", inside, source, former, latter, independent=independent)
        kept = Counter(map(str, edges[0])) & Counter(map(str, edges[1]))
        order, new_order = (", ".join(map(str, _split(each, kept)[0])) for each in edges)
        if order != new_order:
            yield Change("order", inside, source, order, new_order)
    for name, former, text in _differing(before.guards, after.guards):
        matters = None in (former, text) or spaced(former or "") != spaced(text or "")
        yield Change("guard", inside, name, former, text, matters=matters)
    for unit, former, counted in _differing(before.units, after.units):
        yield Change("unit", inside, unit, former, counted)
    for what in _OF_A_GRAPH:
        former, latter = getattr(before, what), getattr(after, what)
        if former != latter:
            words = (_names(former) or None, _names(latter) or None)
            yield Change(what, inside, what, *words, matters=what not in ("allow", "name"))
    for name, old_body, body in bodies:
        yield from _changes(old_body, body, f"{inside}/{name}" if inside else name)


def _node_changes(old: Node, new: Node, inside: str) -> Iterator[Change]:
    if old.use != new.use or (old.body is None) != (new.body is None):
        yield Change("kind", inside, f"{new.name}.use", old.use, new.use)
    computed = {name for node in (new, old) for name, target in node.reads.items() if is_computed(target)}
    for key in dict.fromkeys([*new.parameters, *old.parameters, *sorted(computed)]):
        # An expression read under the name of a parameter is its value too.
        given = (
            {**node.parameters, **{name: target for name, target in node.reads.items() if name in computed}}
            for node in (old, new)
        )
        (before, shown_before), (after, shown_after) = (_stated(parameters, key) for parameters in given)
        if before != after:
            yield Change("parameter", inside, f"{new.name}.{key}", shown_before, shown_after)
    for slot, former, latter in _differing(old.reads, new.reads):
        if slot not in computed:
            yield Change(
                "reads", inside, f"{new.name}.reads.{slot}", former and _names(former), latter and _names(latter)
            )
    for slot, former, latter in _differing(old.writes, new.writes):
        yield Change("writes", inside, f"{new.name}.writes.{slot}", former, latter)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The names with different values in two mappings, and both values; None where there is none."""
    for name in dict.fromkeys([*after, *before]):
        if before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)


def _stated(parameters: Mapping[str, Any], key: str) -> tuple[str | None, str | None]:
    """A parameter as it is compared, and as it is shown; an empty value is not the default."""
    if key not in parameters:
        return None, None
    value = parameters[key]
    return value_text(value), value if isinstance(value, str) else show_value(value)


def _names(target: str | tuple[str, ...]) -> str:
    return target if isinstance(target, str) else f"[{', '.join(target)}]"


def paired_edges(before: tuple[Edge, ...], after: tuple[Edge, ...]) -> list[tuple[Edge | None, Edge | None]]:
    """How the edges of a node have changed: each that only one of the graphs has, with the edge that replaces it.

    An edge with the same guard and another target replaces a former edge, as does one with another guard and the same
    target.

    >>> paired_edges((Edge("a", "late"), Edge("b")), (Edge("c", "late"), Edge("b")))[0][1].target
    'c'
    """
    kept = Counter(map(str, before)) & Counter(map(str, after))
    removed, added = _split(before, kept)[1], _split(after, kept)[1]
    pairs: list[tuple[Edge | None, Edge | None]] = []
    for field in ("when", "target"):
        for old in list(removed):
            new = next((edge for edge in added if getattr(edge, field) == getattr(old, field)), None)
            if new is not None:
                pairs.append((old, new))
                removed.remove(old)
                added.remove(new)
    return [*pairs, *((old, None) for old in removed), *((None, new) for new in added)]


def _split(edges: tuple[Edge, ...], kept: Counter[str]) -> tuple[list[Edge], list[Edge]]:
    """The edges that both graphs have, and the others; a node may have one edge several times."""
    left, both, others = Counter(kept), list[Edge](), list[Edge]()
    for edge in edges:
        (both if left[str(edge)] > 0 else others).append(edge)
        left[str(edge)] -= 1
    return both, others


def _described(node: Node | None) -> str | None:
    if node is None:
        return None
    kind = kind_text(node) or node.use
    parameters = [f"{key} = {_stated(node.parameters, key)[1]}" for key in node.parameters]
    renamed = [f"{slot} = {_names(target)}" for slot, target in (*node.reads.items(), *node.writes.items())]
    return ", ".join([kind, *parameters, *renamed])
