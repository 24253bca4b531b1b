"""Overlays: lists of edits for any graph that has the nodes which they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError
from graphtrain.graph.edits import Edit, with_edits
from graphtrain.graph.elements import Place, Problem

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph


@dataclass(frozen=True)
class Overlay:
    """A list of edits without a base.

    Arguments:
        name: its name in messages and pictures.
        head: those of `start`, `outputs`, `optional` and `optimizer` that it replaces.
        allow: intended problems, added to those of the graph.
        place: its file.
    """

    name: str
    edits: tuple[Edit, ...]
    place: Place
    head: Mapping[str, Any] = field(default_factory=dict)
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layers:
    """The overlays of a graph, for messages and pictures; not part of the value of a graph.

    Arguments:
        names: in the order in which they were named.
        added: node -> the overlay that added it.
        waiting: edits skipped so far, because their nodes do not exist.
        done: the edits that were made.
    """

    names: tuple[str, ...] = ()
    added: Mapping[str, str] = field(default_factory=dict)
    waiting: tuple[Edit, ...] = ()
    done: tuple[Edit, ...] = ()


def with_overlays(graph: Graph, overlays: Sequence[Overlay], where: str) -> tuple[Graph, list[Problem]]:
    """The graph with overlays, and a problem for each edit that cannot be made.

    Overlays are for the outermost graph with the nodes that they name. Guards are defined first, so that each overlay
    may widen them; then the edits are made in order, those with `if_there` as soon as their nodes exist.
    """
    problems: list[Problem] = []
    path, *others = _paths(graph, overlays) or [""]
    if others:
        fitting = ", ".join(f"`{name}`" for name in (path, *others))
        message = f"overlay `{overlays[-1].name}` fits several nested graphs: {fitting}"
        hint = 'name it where the graph is named, as in extends = ["fit", "ema"]'
        return graph, [Problem("G005", "error", where, message, hint)]
    for overlay in overlays:
        names = graph.layers.names
        if overlay.name in names:
            message = f"the graph already has the overlay `{overlay.name}`"
            return graph, [Problem("G005", "error", where, message, "name it once")]
        graph = replace(graph, layers=replace(graph.layers, names=(*names, overlay.name)))
        if not path:
            allow = tuple(dict.fromkeys((*graph.allow, *overlay.allow)))
            places = {**graph.places, "start": overlay.place} if "start" in overlay.head else graph.places
            graph = replace(graph, **overlay.head, allow=allow, places=places)
    if path:
        node = graph.nodes[path]
        assert node.body is not None, "found before"
        body, problems = with_overlays(node.body, overlays, where)
        return replace(graph, nodes={**graph.nodes, path: replace(node, body=body)}), problems
    edits = sorted((edit for overlay in overlays for edit in overlay.edits), key=lambda edit: not _defines(edit))
    graph = with_edits(graph, [edit for edit in edits if not edit.if_there], problems, _applied)
    waiting = [*graph.layers.waiting, *(edit for edit in edits if edit.if_there)]
    graph = with_edits(graph, waiting, problems, _applied)
    waiting = [edit for edit in waiting if not edit.has_nodes(graph)]
    return replace(graph, layers=replace(graph.layers, waiting=tuple(waiting))), problems


def _paths(graph: Graph, overlays: Sequence[Overlay]) -> list[str]:
    """The nodes whose bodies have what overlays name; only the empty path if the graph itself has it."""
    edits = [edit for overlay in overlays for edit in overlay.edits]
    added = {edit.arguments.get("new", edit.subject) for edit in edits if edit.verb in ("insert", "nest", "rename")}
    of_own_edges = {edit.arguments.get("when") for edit in edits} | {f"{name}_due" for name in added}
    guards = {edit.subject for edit in edits if edit.verb == "guard" and not edit.if_there}
    needed = {name.partition("/")[0] for edit in edits if not edit.if_there for name in edit.nodes()}
    if needed <= {*graph.nodes, *added} and guards <= {*graph.guards, *of_own_edges}:
        return [""]
    return [name for name, node in graph.nodes.items() if node.body is not None and _paths(node.body, overlays)]


def _defines(edit: Edit) -> bool:
    return edit.verb == "guard" and edit.arguments.get("expression") is not None


def _defined(edit: Edit) -> str:
    """What an edit defines or removes; empty if it changes something."""
    if edit.verb in ("insert", "nest", "replace", "remove"):
        return f"node `{edit.subject}`"
    if edit.verb == "set" and "use" in edit.arguments:
        return f"the kind of node `{edit.subject}`"
    return f"guard `{edit.subject}`" if _defines(edit) else ""


def _applied(graph: Graph, edit: Edit) -> Graph:
    """The graph with an edit; one that another overlay has made is made once, except that the last setting holds."""
    done = [other for other in graph.layers.done if other.overlay != edit.overlay]
    if edit in done and edit.verb != "set":
        return graph
    if what := _defined(edit):
        for other in done:
            is_same_guard = what.startswith("guard") and (other.verb, other.subject) == (edit.verb, edit.subject)
            if other != edit and (_defined(other) == what or is_same_guard):
                message = f"it and `{other.overlay}` do not compose: each changes {what}"
                raise EditError(message, "leave one of them out")
    node, use = graph.nodes.get(edit.subject), edit.arguments.get("use")
    if edit.verb == "set" and node is not None and use not in (None, node.use) and (node.use != node.name or node.kind):
        message = f"`{edit.subject}` would become a `{use}`, but its kind was chosen, `{node.use}`"
        raise EditError(message, f'in an overlay of your own, replace = "{edit.subject}" replaces any kind')
    edited = edit.applied(graph)
    added = {name: edit.overlay for name in edited.nodes if name not in graph.nodes}
    layers = replace(edited.layers, added={**edited.layers.added, **added}, done=(*edited.layers.done, edit))
    return replace(edited, layers=layers)
