"""Edits as data, as in tables ``[[edit]]``; and overlays, lists of them for any graph that has the nodes they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphtrain.errors import EditError, GraphError, UsageError
from graphtrain.graph.edit import VERBS, guards_of, placed
from graphtrain.graph.elements import Edit, G, Problem
from graphtrain.kind.parameter import coerce_item, show_value
from graphtrain.names import quoted, suggestion


def edit_of(table: Mapping[str, Any], place: str, overlay: str = "") -> Edit:
    """The edit of a table.

    Raises:
        EditError: it is not a table, or it has no verb or several.

    >>> edit_of({"remove": "log", "to": "decide"}, "my.toml:3").arguments
    {'to': 'decide'}
    """
    if not isinstance(table, Mapping):
        raise EditError(f"edit: expected a table, got {show_value(table)}")
    verbs = [name for name in table if name in VERBS]
    if not verbs:
        raise EditError(f"edit: no verb in {show_value(table)}", suggestion(next(iter(table), ""), VERBS))
    if len(verbs) > 1:
        message = f"edit: two verbs in one table, `{verbs[0]}` and `{verbs[1]}`"
        raise EditError(message, "begin a separate table with [[edit]]")
    # `or` and `and` are keywords of Python.
    rest = {f"{key}_" if key in ("or", "and") else key: value for key, value in table.items() if key != verbs[0]}
    try:
        subject = coerce_item(verbs[0], table[verbs[0]], str)
        if_there = coerce_item("if_there", rest.pop("if_there", False), bool)
    except ValueError as error:
        raise EditError(f"edit: {error}") from None
    return Edit(verbs[0], subject, rest, place, if_there, overlay)


def applied(edit: Edit, graph: G) -> G:
    """The graph with the edit applied, and its place noted for all that it changed.

    Raises:
        EditError, UsageError, GraphError: it cannot be applied.
    """
    edited: G = VERBS[edit.verb](graph, edit.subject, **edit.arguments)
    return placed(edited, graph, edit.place)


def with_edits(graph: G, edits: Iterable[Edit], problems: list[Problem]) -> tuple[G, list[Edit]]:
    """The graph with the edits applied in order, and the edits whose nodes are missing.

    An edit that cannot be applied adds a problem, unless its nodes are missing and it has `if_there`.
    """
    missing: list[Edit] = []
    for edit in edits:
        try:
            graph = _of_overlay(graph, edit) if edit.overlay else applied(edit, graph)
        except (EditError, UsageError, GraphError) as error:
            is_missing = isinstance(error, EditError) and error.is_missing
            missing += [edit] if is_missing else []
            if not (edit.if_there and is_missing):
                message = f"overlay `{edit.overlay}`: {error.message}" if edit.overlay else error.message
                problems.append(Problem("G005", "error", edit.place, message, error.hint))
    return graph, missing


@dataclass(frozen=True)
class Overlay:
    """A list of edits without a base.

    Arguments:
        name: its name in messages and pictures.
        head: those of `start`, `outputs`, `optional`, `optimizer` and `allow` that it has.
        place: its file.
    """

    name: str
    edits: tuple[Edit, ...]
    place: str
    head: Mapping[str, Any] = field(default_factory=dict)


def with_head(graph: G, head: Mapping[str, Any], places: Mapping[str, str]) -> G:
    """The graph with the values at the top of a file in place of its own; codes in `allow` are added to its own."""
    allow = dict.fromkeys((*graph.allow, *head.get("allow", ())))
    return replace(graph, **{**head, "allow": tuple(allow)}, places={**graph.places, **places})


def with_overlays(graph: G, overlays: Sequence[Overlay], where: str) -> tuple[G, list[Problem], bool]:
    """The graph with overlays, a problem for each edit that cannot be applied, and whether they fit this graph.

    Overlays apply to the outermost graph with the nodes that they name. Guards are defined first, so that each overlay
    may widen them; then the edits are applied in order, those with `if_there` as soon as their nodes exist.
    """
    layers, edited, problems = graph.layers, graph, list[Problem]()
    for overlay in overlays:
        if overlay.name in layers.names:
            message = f"the graph already has the overlay `{overlay.name}`"
            return graph, [Problem("G005", "error", where, message, "name it once")], True
        layers = replace(layers, names=(*layers.names, overlay.name))
        edited = with_head(edited, overlay.head, dict.fromkeys(overlay.head, overlay.place))
    edits = sorted([edit for overlay in overlays for edit in overlay.edits], key=lambda edit: not edit.defines_guard)
    required = [edit for edit in edits if not edit.if_there]
    edited, missing = with_edits(replace(edited, layers=layers), required, problems)
    guards = {edit.subject for edit in required if edit.defines_guard}
    applies = not missing and guards <= {*graph.guards, *guards_of(edited.edges, edited.guards)}
    bodies = {name: node.body for name, node in graph.nodes.items() if node.body is not None and not applies}
    inside = {name: with_overlays(body, overlays, where) for name, body in bodies.items()}
    fitting = [name for name, (_, _, is_fitting) in inside.items() if is_fitting]
    if len(fitting) > 1:
        message = f"overlay `{overlays[-1].name}` fits several nested graphs: {quoted(fitting)}"
        hint = 'name it where the graph is named, as in extends = ["fit", "ema"]'
        return graph, [Problem("G005", "error", where, message, hint)], True
    if fitting:
        body, problems, _ = inside[fitting[0]]
        nodes = {**graph.nodes, fitting[0]: replace(graph.nodes[fitting[0]], body=body)}
        return replace(graph, nodes=nodes, layers=layers), problems, True
    waiting = [*layers.waiting, *[edit for edit in edits if edit.if_there]]
    edited, waiting = with_edits(edited, waiting, problems)
    return replace(edited, layers=replace(edited.layers, waiting=tuple(waiting))), problems, applies


def _of_overlay(graph: G, edit: Edit) -> G:
    """The graph with an edit of an overlay; one that another overlay has applied is skipped, unless it is a setting."""
    done = [other for other in graph.layers.done if other.overlay != edit.overlay]
    if edit in done and edit.verb != "set":
        return graph
    is_defining = edit.defines_guard or edit.adds or edit.verb in ("replace", "remove")
    for other in done:
        if is_defining and (other.verb, other.subject) == (edit.verb, edit.subject):
            element = "guard" if edit.defines_guard else "node"
            message = f"it and `{other.overlay}` do not compose: each changes {element} `{edit.subject}`"
            raise EditError(message, "leave one of them out")
    node, use = graph.nodes.get(edit.subject), edit.arguments.get("use")
    if edit.verb == "set" and node is not None and use not in (None, node.use) and (node.use != node.name or node.kind):
        message = f"`{edit.subject}` would become a `{use}`, but the graph already chose another kind: `{node.use}`"
        raise EditError(message, f'in your own overlay, replace = "{edit.subject}" replaces any kind')
    edited = applied(edit, graph)
    return replace(edited, layers=replace(edited.layers, done=(*edited.layers.done, edit)))
