"""Where overlays are added: to a graph, or to the graph inside it that has the nodes which they name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from graphtrain.graph.graph import Graph
from graphtrain.graph.overlay import Overlay, composed, has_node
from graphtrain.graph.problem import Problem
from graphtrain.names import quoted

_KNOWN = "the graph `{}` has the overlay `{}` already"


def with_overlays(graph: Graph, overlays: Sequence[Overlay]) -> tuple[Graph, list[Problem]]:
    """The graph with overlays, and a problem for each that does not fit.

    An overlay is for the outermost graph that has all nodes and guards which it names. What another overlay adds may be
    among them. One that fits nowhere is added to `graph`, whose problems say what is missing there.
    """
    paths = _paths_of(graph, overlays)
    problems = [
        Problem(
            "G005",
            "error",
            str(overlay.place),
            f"overlay `{overlay.name}` fits several nested graphs: {quoted(found)}",
            f'name it where one of them is named, as in extends = ["fit", "{overlay.name}"]',
        )
        for overlay, found in zip(overlays, paths, strict=True)
        if len(found) > 1
    ]
    for path in dict.fromkeys(found[0] for found in paths if len(found) == 1):
        added = [overlay for overlay, found in zip(overlays, paths, strict=True) if found == [path]]
        graph, conflicts = _composed_at(graph, path, added)
        problems += conflicts
    return graph, problems


def _composed_at(graph: Graph, path: str, overlays: Sequence[Overlay]) -> tuple[Graph, list[Problem]]:
    """The graph with overlays added to the one at the path of a node; their names are those of every graph around."""
    if not path:
        known = [overlay for overlay in overlays if overlay.name in graph.layers.names]
        problems = [
            Problem("G005", "error", str(overlay.place), _KNOWN.format(graph.name, overlay.name), "name it once")
            for overlay in known
        ]
        graph, conflicts = composed(graph, [overlay for overlay in overlays if overlay not in known])
        return graph, problems + conflicts
    outer, _, inner = path.partition("/")
    node = graph.nodes[outer]
    assert node.body is not None, "found before"
    body, problems = _composed_at(node.body, inner, overlays)
    names = (*graph.layers.names, *(overlay.name for overlay in overlays))
    nodes = {**graph.nodes, outer: replace(node, body=body)}
    return replace(graph, nodes=nodes, layers=replace(graph.layers, names=names)), problems


def _paths_of(graph: Graph, overlays: Sequence[Overlay]) -> list[list[str]]:
    """For each overlay the paths of the graphs that it fits, of one depth; the empty path is `graph` itself."""
    paths: dict[int, list[str]] = {}
    is_new = True
    while is_new:
        is_new = False
        for number, overlay in enumerate(overlays):
            others = [(overlays[other], found[0]) for other, found in paths.items() if len(found) == 1]
            if number not in paths and (found := _fitting(graph, overlay, others)):
                paths[number], is_new = found, True
    return [paths.get(number, [""]) for number in range(len(overlays))]


def _fitting(graph: Graph, overlay: Overlay, others: Sequence[tuple[Overlay, str]]) -> list[str]:
    """The paths of the outermost graphs that have what an overlay names, with what others add at their paths."""
    level = [("", graph)]
    while level:
        if found := [
            path
            for path, each in level
            if _fits(each, overlay, [overlay, *(other for other, place in others if place == path)])
        ]:
            return found
        level = [inner for path, each in level for inner in _bodies(path, each)]
    return []


def _bodies(path: str, graph: Graph) -> Iterator[tuple[str, Graph]]:
    for name, node in graph.nodes.items():
        if node.body is not None:
            yield (f"{path}/{name}" if path else name), node.body


def _fits(graph: Graph, overlay: Overlay, adding: Iterable[Overlay]) -> bool:
    edits = [edit for other in adding for edit in other.edits]
    added = {edit.subject for edit in edits if edit.verb in ("insert", "nest")}
    added |= {str(edit.arguments["new"]) for edit in edits if edit.verb == "rename"}
    of_own_edges = {edit.arguments.get("when") for edit in edits} | {f"{name}_due" for name in added}
    guards = {edit.subject for edit in overlay.edits if edit.verb == "guard" and not edit.if_there}
    nodes = {name for edit in overlay.edits if not edit.if_there for name in edit.nodes()}
    return guards <= {*graph.guards, *of_own_edges} and all(
        name.partition("/")[0] in added or has_node(graph, name) for name in nodes
    )
