"""The pictures of a graph for a page, with the node of each box and the edge of each arrow."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

from graphtrain.errors import GraphtrainError
from graphtrain.graph.elements import GraphData, Node, kind_text, settings_of
from graphtrain.graph.registry import kind_of_node
from graphtrain.printable import shown
from graphtrain.report.run import Run
from graphtrain.viz.describe import describe
from graphtrain.viz.difference import describe_difference
from graphtrain.viz.dot import to_dot
from graphtrain.viz.render import element

_svg = functools.lru_cache(maxsize=32)(element)  # a page that is watched asks for the same pictures again: 200 ms each
_MOST_RUNS = 9_999  # in the pictures; a page writes the counts of a moment over them


def content_of(
    graph: GraphData, runs: Mapping[str, int], edge_counts: Mapping[str, int], position: str, bypassed: Collection[str]
) -> dict[str, Any]:
    """What a page shows of a graph: its pictures, unfolded and folded; its nodes by path, and its edges by key.

    Where nothing can draw, there are no pictures, and `error` says why.

    Arguments:
        graph: the graph.
        runs: how often each node ran; a body that never ran is folded. Empty where that is not known.
        edge_counts: how often each edge was taken, by its key in `graphtrain.Run.activity`.
        position: the node that runs next, or has failed; a body that holds it is not folded.
        bypassed: the nodes that the run bypasses.

    >>> from graphtrain import Graph
    >>> content = content_of(Graph.load("evaluate"), {}, {}, "", ())
    >>> [drawn["name"] for drawn in content["pictures"]], content["edges"]["eval_batch -> next_batch"]["order"]
    (['unfolded'], 2)
    """
    whole = describe(graph)
    bodies = [box.path for box in whole.nodes if box.is_body]
    nodes = {box.key: box.path for box in whole.nodes}
    idle = {path for path in bodies if not runs.get(path) and not position.startswith(f"{path}/")}
    counts = dict.fromkeys({*nodes.values(), *edge_counts} - idle, _MOST_RUNS)
    content: dict[str, Any] = {
        "name": graph.name,
        "nodes": {box.path: _node(box.node) for box in whole.nodes if box.node is not None},
        "edges": {
            arrow.key: {
                "source": nodes[arrow.source],
                "target": arrow.key.partition(" -> ")[2].partition(" if ")[0],
                "guard": arrow.guard or "",
                "expression": arrow.expression,
                "order": arrow.number or 1,
            }
            for arrow in whole.arrows
            if arrow.source in nodes
        },
        "pictures": [],
        "error": "",
    }
    try:
        for name, folded in (("unfolded", []), ("folded", bodies))[: 2 if bodies else 1]:
            drawn = describe(graph, counts if runs else None, None, bypassed, folded)
            drawn.caption = []
            for box in drawn.nodes:
                box.width = 1.2
            arrows = [arrow.key if arrow.source in nodes else None for arrow in drawn.arrows]
            content["pictures"].append({"name": name, "svg": _svg(to_dot(drawn)), "keys": nodes, "arrows": arrows})
    except GraphtrainError as error:
        content["error"] = str(error)
    return content


def difference_of(before: Run, after: Run) -> dict[str, Any] | None:
    """The picture of what differs between the graphs of two runs; None where nothing does, or it cannot be drawn."""
    try:
        difference = before.graph.diff(after.graph)
        return {"svg": _svg(to_dot(describe_difference(difference))), "text": str(difference)} if difference else None
    except GraphtrainError:
        return None


def _node(node: Node) -> dict[str, Any]:
    kind = kind_of_node(node) if node.body is None else None
    about = shown(kind.description.partition("\n")[0]).replace("``", "`") if kind is not None else ""
    return {
        "kind": kind_text(node) or node.use,
        "about": about,
        "settings": [shown(line) for line in settings_of(node)],
    }
