"""Edits as data: a verb of `Graph` with its arguments, as in a table ``[[edit]]``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError
from graphtrain.graph.edit import Editable
from graphtrain.graph.elements import END, Node, Place
from graphtrain.kind.parameter import coerce, show_value
from graphtrain.names import suggestion

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph

IF_THERE = "if_there"


# Verb -> its arguments that name nodes which must exist.
VERBS: Mapping[str, tuple[str, ...]] = {
    "insert": ("after", "before", "at", "between"),
    "replace": ("name",),
    "remove": ("name", "to"),
    "connect": ("source", "target", "before", "after"),
    "disconnect": ("source",),
    "redirect": ("source", "new"),
    "set": ("name",),
    "guard": (),
    "nest": (),
    "hook": (),
    "rename": ("old",),
    "clock": ("field",),
}


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
        return placed(getattr(graph, self.verb)(self.subject, **self.arguments), graph, self.place)

    def with_graph(self, graph: Graph) -> Edit:
        """The same edit with the graph that its `graph` names."""
        return replace(self, arguments={**self.arguments, "graph": graph})

    def nodes(self) -> list[str]:
        """The nodes that it needs, by their paths."""
        given = {_parameters(self.verb)[0].name: self.subject, **self.arguments}
        names: list[str] = []
        for key in VERBS[self.verb]:
            if key == "field":
                names.append(str(given[key]).partition(".")[0])
            elif key in given:
                names += given[key] if key == "between" else [given[key]]
        return [name for name in dict.fromkeys(names) if name != END]

    @property
    def is_behind(self) -> bool:
        """True if it adds something after a node."""
        return not {"after", "between"}.isdisjoint(self.arguments)

    def has_nodes(self, graph: Graph) -> bool:
        """True if the graph has every node that it needs, and the guard that it widens."""
        if self.verb == "guard" and self.arguments.get("expression") is None and self.subject not in graph.guards:
            return False
        return all(node_at(graph, name) for name in self.nodes())


def node_at(graph: Graph, path: str) -> Node | None:
    """The node at a path; None if there is none."""
    name, _, inner = path.partition("/")
    node = graph.nodes.get(name)
    if node is None or not inner:
        return node
    return node_at(node.body, inner) if node.body is not None else None


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
    wrong = "" if isinstance(if_there, bool) else f"{IF_THERE}: expected true or false, got {show_value(if_there)}"
    if wrong := wrong or _wrong_argument(verb, table[verb], rest):
        raise EditError(f"edit: {verb}: {wrong}", _usage(verb))
    return Edit(verb, table[verb], rest, place, if_there, overlay)


@functools.cache
def _parameters(verb: str) -> list[inspect.Parameter]:
    """The parameters of a verb; ``**parameters`` is the last."""
    declared = inspect.signature(getattr(Editable, verb)).parameters.values()
    return [each for each in declared if each.kind is not each.VAR_POSITIONAL][1:]


def _wrong_argument(verb: str, first: Any, others: Mapping[str, Any]) -> str:
    """The problem with the arguments of a verb, before it is called; empty if there is none."""
    parameters = _parameters(verb)
    if parameters[0].name in others and parameters[0].kind is not parameters[0].POSITIONAL_ONLY:
        return f"`{parameters[0].name}` is already the value of `{verb}`"
    arguments = {**others, parameters[0].name: first}
    takes_more = parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    named = parameters[:-1] if takes_more else parameters
    for parameter in named:
        name, value = parameter.name, arguments.get(parameter.name)
        if name not in arguments:
            if parameter.default is parameter.empty:
                return f"`{name}` is missing"
        elif name == "between":
            if not isinstance(value, list) or not all(isinstance(end, str) for end in value):
                return f'between: expected ["SOURCE", "TARGET"], got {show_value(value)}'
            if len(value) != 2:
                return f"`between` takes a source and a target, got {value!r}"
        elif name == "graph":
            if not isinstance(value, str | dict):
                return f"graph: expected a name, a path or a table, got {show_value(value)}"
        else:
            try:
                coerce(value, bool if name == "first" else str)
            except ValueError as error:
                return f"{name.rstrip('_')}: {error}"
    if verb == "guard" and not {"expression", "or_", "and_"}.intersection(arguments):
        return "one of `expression`, `or` and `and` is missing"
    known = {parameter.name.rstrip("_") for parameter in named}
    for name in arguments:
        if name.rstrip("_") not in known and not takes_more:
            return f"it takes no `{name}`. {suggestion(name, known)}".rstrip()
    return ""


def _usage(verb: str) -> str:
    first, *others = _parameters(verb)
    required = [other.name for other in others if other.default is other.empty and other.kind is not other.VAR_KEYWORD]
    optional = [other.name.rstrip("_") for other in (first, *others) if other.default is not other.empty]
    written = ", ".join(f'{name} = "..."' for name in (verb, *required))
    options = f"; optional: {', '.join([*optional, IF_THERE])}"
    more = "; then parameters of the node" if others and others[-1].kind is inspect.Parameter.VAR_KEYWORD else ""
    return f"the verb is written {written}{options}{more}"


# ---- places in files after an edit


def placed(edited: Graph, before: Graph, place: Place) -> Graph:
    """The graph in which everything that an edit changed has the place of the edit."""
    nodes = {name: _placed_node(node, before.nodes.get(name), place) for name, node in edited.nodes.items()}
    edges = {
        source: leaving
        if leaving is before.edges.get(source)
        else tuple(
            edge if edge.place is not None and edge in before.edges.get(source, ()) else replace(edge, place=place)
            for edge in leaving
        )
        for source, leaving in edited.edges.items()
    }
    changed = [
        f"{section}.{name}"
        for section, now, former in (
            ("guards", edited.guards, before.guards),
            ("clock", edited.units, before.units),
            ("edges", edges, before.edges),
        )
        for name, value in now.items()
        if former.get(name) != value
    ]
    return replace(edited, nodes=nodes, edges=edges, places={**edited.places, **dict.fromkeys(changed, place)})


def _placed_node(node: Node, before: Node | None, place: Place) -> Node:
    if node.place is not None and node == before:
        return node
    if before is not None and before.body is not None and node.body is not None and node.reference == before.reference:
        same = replace(node, body=before.body) == before
        return replace(node, body=placed(node.body, before.body, place), place=node.place if same else place)
    return replace(node, place=place)
