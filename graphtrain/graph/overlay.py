"""Overlays: lists of edits for any graph that has the nodes which they name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError, GraphError, UsageError
from graphtrain.graph.edits import Edit, node_at
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


def with_overlays(graph: Graph, overlays: Sequence[Overlay], where: str) -> tuple[Graph, list[Problem]]:
    """The graph with overlays, and a problem for each edit that cannot be made.

    Overlays are for the outermost graph with the nodes that they name. Guards are defined first, so that each overlay
    may widen them; then the edits are made in the order in which the overlays are named, but those with `if_there` once
    their nodes exist.
    """
    problems = [*_conflicts(graph, overlays, where)]
    if problems:
        return graph, problems
    path, *others = [*_paths(graph, overlays)] or [""]
    names = (*graph.layers.names, *(overlay.name for overlay in overlays))
    if others:
        fitting = ", ".join(f"`{name}`" for name in (path, *others))
        message = f"overlay `{overlays[-1].name}` fits several nested graphs: {fitting}"
        hint = 'name it where the graph is named, as in extends = ["fit", "ema"]'
        return graph, [Problem("G005", "error", where, message, hint)]
    if path:
        node = graph.nodes[path]
        assert node.body is not None, "found before"
        body, problems = with_overlays(node.body, overlays, where)
        nodes = {**graph.nodes, path: replace(node, body=body)}
        return replace(graph, nodes=nodes, layers=replace(graph.layers, names=names)), problems
    for overlay in overlays:
        allow = tuple(dict.fromkeys((*graph.allow, *overlay.allow)))
        places = {**graph.places, "start": overlay.place} if "start" in overlay.head else graph.places
        graph = replace(graph, **overlay.head, allow=allow, places=places)
    return _composed(replace(graph, layers=replace(graph.layers, names=names)), overlays)


def _composed(graph: Graph, overlays: Sequence[Overlay]) -> tuple[Graph, list[Problem]]:
    """The graph with the edits of overlays; what follows from a missing node is not reported again."""
    problems: list[Problem] = []
    edits = [edit for overlay in overlays for edit in overlay.edits]
    waiting, lost = [*graph.layers.waiting], set[str]()

    def made(graph: Graph, edit: Edit) -> Graph:
        try:
            return _applied(graph, edit)
        except (EditError, UsageError, GraphError) as error:
            message = f"overlay `{edit.overlay}`: {error.message}"
            problems.append(Problem("G005", "error", str(edit.place), message, error.hint))
            lost.update(name for name in (edit.subject, *edit.nodes()) if node_at(graph, name) is None)
            return graph

    for edit in sorted(edits, key=lambda edit: not _defines(edit)):
        if edit.if_there and not edit.has_nodes(graph):
            waiting.append(edit)
        elif lost.isdisjoint(edit.nodes()):
            graph = made(graph, edit)
    while ready := [edit for edit in waiting if edit.has_nodes(graph)]:
        waiting.remove(ready[0])
        graph = made(graph, ready[0])
    return replace(graph, layers=replace(graph.layers, waiting=tuple(waiting))), problems


def _defines(edit: Edit) -> bool:
    return edit.verb == "guard" and edit.arguments.get("expression") is not None


def _conflicts(graph: Graph, overlays: Sequence[Overlay], where: str) -> Iterator[Problem]:
    """A problem for each overlay that is added twice, and for two that define the same thing differently."""
    names = [*graph.layers.names]
    for overlay in overlays:
        if overlay.name in names:
            message, hint = f"the graph already has the overlay `{overlay.name}`", "name it once"
            yield Problem("G005", "error", where, message, hint)
        names.append(overlay.name)
    defined: dict[str, Edit] = {}
    for edit in (*graph.layers.done, *(edit for overlay in overlays for edit in overlay.edits)):
        if key := _defined(edit):
            other = defined.setdefault(key, edit)
            if other.overlay != edit.overlay and other != edit:
                message = f"overlays `{other.overlay}` and `{edit.overlay}` do not compose: each defines {key}"
                yield Problem("G005", "error", str(edit.place), message, "leave one of them out")
            elif (by := graph.layers.overlay_of(key.replace("`", ""))) not in ("", other.overlay) and _defines(edit):
                message = f"overlay `{edit.overlay}` defines {key}, which `{by}` has changed"
                hint = f'add both at once, as by overlay("{by}", "{edit.overlay}")'
                yield Problem("G005", "error", str(edit.place), message, hint)


def _defined(edit: Edit) -> str:
    """What an edit defines or removes; empty if it changes something."""
    if edit.verb in ("insert", "nest", "replace", "remove"):
        return f"node `{edit.subject}`"
    if edit.verb == "set" and "use" in edit.arguments:
        return f"the kind of node `{edit.subject}`"
    return f"guard `{edit.subject}`" if _defines(edit) else ""


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


def _applied(graph: Graph, edit: Edit) -> Graph:
    """The graph with one edit, after what other overlays have added at the same place.

    Raises:
        EditError, UsageError, GraphError: it cannot be made.
    """
    if edit in graph.layers.done:
        return graph
    arguments, node = dict(edit.arguments), node_at(graph, edit.subject)
    if edit.verb == "set" and node is not None and arguments.get("use", node.use) != node.use:
        outer = edit.subject.partition("/")[0]
        is_own = any(other.subject == outer and other.overlay == edit.overlay for other in graph.layers.done)
        if not is_own and (node.use != node.name or node.kind is not None):
            message = f"`{edit.subject}` would become a `{arguments['use']}`, but its kind was chosen, `{node.use}`"
            raise EditError(message, f'in an overlay of your own, replace = "{edit.subject}" replaces any kind')
    if edit.verb == "insert":
        inserted = [other for other in graph.layers.done if other.verb == "insert"]
        behind = {other.subject for other in inserted if other.overlay != edit.overlay and other.is_behind}
        if "after" in arguments and "at" not in arguments:
            arguments["after"] = _way(graph, arguments["after"], behind)[-1]
        elif "between" in arguments:
            added = {other.subject for other in inserted}
            arguments["between"] = _between(graph, arguments["between"], added, behind)
    edited = replace(edit, arguments=arguments).applied(graph)
    return replace(edited, layers=edited.layers.noted(graph, edited, edit))


def _way(graph: Graph, name: str, through: AbstractSet[str]) -> list[str]:
    """A node and those after it, as long as there is only one way, which leads through these nodes."""
    names = [name]
    while len(leaving := graph.edges.get(names[-1], ())) == 1 and leaving[0].target in {*through}.difference(names):
        names.append(leaving[0].target)
    return names


def _between(graph: Graph, ends: tuple[str, str], added: AbstractSet[str], behind: AbstractSet[str]) -> tuple[str, str]:
    """An edge from a node to another, or of the way there through nodes that overlays have added in between."""
    source, target = ends
    for edge in graph.edges.get(source, ()):
        way = [source, *_way(graph, edge.target, {*added, target})]
        if edge.target in {*added, target} and target in way:
            passed = len([*itertools.takewhile(behind.__contains__, way[1 : way.index(target)])])
            return way[passed], way[passed + 1]
    return ends
