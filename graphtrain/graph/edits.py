"""Edits as data: a verb of `Graph` with its arguments, as in a table ``[[edit]]``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError, GraphError, UsageError
from graphtrain.graph.edit import VERBS
from graphtrain.graph.elements import END, Node, Place, Problem, nodes_of
from graphtrain.kind.parameter import coerce_item, show_value
from graphtrain.kind.signatures import hints_of
from graphtrain.names import suggestion

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph

IF_THERE = "if_there"


@dataclass(frozen=True)
class Edit:
    """One table ``[[edit]]``.

    Arguments:
        subject: the first argument of the method, which is the value of the key of the verb.
        arguments: the others, by their names in Python.
        place: its place in the file.
        if_there: True if it is skipped where a node that it names does not exist.
        overlay: the name of its overlay; empty for an edit of a graph file.

    Two edits are equal if they do the same, wherever they are written.
    """

    verb: str
    subject: str
    arguments: Mapping[str, Any]
    place: Place = field(compare=False)
    if_there: bool = field(default=False, compare=False)
    overlay: str = field(default="", compare=False)

    def applied(self, graph: Graph) -> Graph:
        """The graph with the edit made; everything that it changed gets its place.

        Raises:
            EditError, UsageError, GraphError: it cannot be made.
        """
        return placed(VERBS[self.verb][0](graph, self.subject, **self.arguments), graph, self.place)

    def with_graph(self, graph: Graph) -> Edit:
        """The same edit with the graph that its `graph` names."""
        return replace(self, arguments={**self.arguments, "graph": graph})

    def nodes(self) -> list[str]:
        """The nodes that it needs, by their paths."""
        given = {[*_signature(self.verb).parameters][1]: self.subject, **self.arguments}
        names: list[str] = []
        for key in VERBS[self.verb][1]:
            if key == "field":
                names.append(str(given[key]).partition(".")[0])
            elif key in given:
                names += given[key] if key == "between" else [given[key]]
        return [name for name in dict.fromkeys(names) if name != END]

    def has_nodes(self, graph: Graph) -> bool:
        """True if the graph has every node that it needs, and the guard that it widens."""
        if self.verb == "guard" and self.arguments.get("expression") is None and self.subject not in graph.guards:
            return False
        return nodes_of(graph).keys() >= {*self.nodes()}


def with_edits(
    graph: Graph, edits: Iterable[Edit], problems: list[Problem], apply: Callable[[Graph, Edit], Graph]
) -> Graph:
    """The graph with edits in order; one that cannot be made adds to the problems, one that may be skipped does not."""
    for edit in edits:
        if edit.if_there and not edit.has_nodes(graph):
            continue
        try:
            graph = apply(graph, edit)
        except (EditError, UsageError, GraphError) as error:
            message = f"overlay `{edit.overlay}`: {error.message}" if edit.overlay else error.message
            problems.append(Problem("G005", "error", str(edit.place), message, error.hint))
    return graph


# ---- from a table of a file


def edit_of(table: Mapping[str, Any], place: Place, overlay: str = "") -> Edit:
    """The edit of a table ``[[edit]]``.

    Raises:
        EditError: it has no verb or two, or an argument is missing, unknown, or of the wrong type.

    >>> edit_of({"remove": "log", "to": "decide"}, Place("my.toml", 3)).nodes()
    ['log', 'decide']
    """
    verbs = [name for name in table if name in VERBS]
    if not verbs:
        raise EditError(f"edit: no verb in {show_value(table)}", suggestion(next(iter(table), ""), VERBS))
    if len(verbs) > 1:
        message = f"edit: two verbs in one table, `{verbs[0]}` and `{verbs[1]}`"
        raise EditError(message, "begin a separate table with [[edit]]")
    (verb,) = verbs
    # `or` and `and` are keywords of Python.
    rest = {f"{name}_" if name in ("or", "and") else name: value for name, value in table.items() if name != verb}
    if_there = rest.pop(IF_THERE, False)
    try:
        arguments = _signature(verb).bind(None, table[verb], **rest).arguments
        coerce_item(IF_THERE, if_there, bool)
        for name, annotation in _types(verb).items():
            if name in arguments and name != "parameters":
                coerce_item(name.rstrip("_"), arguments[name], annotation)
    except (TypeError, ValueError) as error:
        names = [*_signature(verb).parameters][1:]
        raise EditError(f"edit: {verb}: {error}", f"it takes {', '.join(names)}") from None
    return Edit(verb, table[verb], rest, place, if_there, overlay)


@functools.cache
def _signature(verb: str) -> inspect.Signature:
    return inspect.signature(VERBS[verb][0])


@functools.cache
def _types(verb: str) -> dict[str, Any]:
    return hints_of(VERBS[verb][0])


# ---- places in files after an edit


def placed(edited: Graph, before: Graph, place: Place) -> Graph:
    """The graph in which everything that an edit changed has the place of the edit."""
    nodes = {name: _placed_node(node, before.nodes.get(name), place) for name, node in edited.nodes.items()}
    edges = {
        source: tuple(edge if edge in before.edges.get(source, ()) else replace(edge, place=place) for edge in leaving)
        for source, leaving in edited.edges.items()
    }
    sections = (
        ("guards", edited.guards, before.guards),
        ("clock", edited.units, before.units),
        ("edges", edges, before.edges),
    )
    changed = {
        f"{section}.{name}": place
        for section, now, former in sections
        for name, value in now.items()
        if former.get(name) != value
    }
    return replace(edited, nodes=nodes, edges=edges, places={**edited.places, **changed})


def _placed_node(node: Node, before: Node | None, place: Place) -> Node:
    if node.place is not None and node == before:
        return node
    if before is not None and before.body is not None and node.body is not None and node.reference == before.reference:
        same = replace(node, body=before.body) == before
        return replace(node, body=placed(node.body, before.body, place), place=node.place if same else place)
    return replace(node, place=place)
