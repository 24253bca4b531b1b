"""Two graphs in one picture: parts of only one of them, and what differs, as marks on the boxes and arrows of both."""

from __future__ import annotations

from dataclasses import replace

from graphtrain.graph.difference import Difference
from graphtrain.graph.elements import G, GraphData
from graphtrain.printable import shown
from graphtrain.viz.describe import LINE_LENGTH, NUMBERS, Description, describe, first_few
from graphtrain.viz.theme import MARKS, SIGNS

MOST_LINES = 5  # of a node, and above the picture
_OF_A_NODE = ("kind", "parameter", "reads", "writes")
_DRAWN = (*_OF_A_NODE, "node", "edge", "order", "start")


def describe_difference(difference: Difference) -> Description:
    """The second graph with the parts that only the first one has, and marks.

    Equal parts are grey. Added ones are green, thick, with ``+``; removed ones orange, dotted, with ``\N{MINUS SIGN}``;
    changed ones blue, with ``~``. Differences without a place in the picture are listed above it.

    >>> from graphtrain import Graph
    >>> fit = Graph.load("fit")
    >>> drawn = describe_difference(fit.diff(fit.insert("pause", "choice", after="step")))
    >>> [(arrow.key, arrow.mark) for arrow in drawn.arrows if arrow.mark]
    [('step -> zero_grad', 'removed'), ('step -> pause', 'added'), ('pause -> zero_grad', 'added')]
    """
    drawn = describe(_union(difference.before, difference.after))
    marks = {change.path: change.how for change in difference.changes if change.category == "node"}
    changed = [change for change in difference.changes if change.category in _OF_A_NODE]
    for box in drawn.nodes:
        around = [mark for path, mark in marks.items() if box.path == path or box.path.startswith(f"{path}/")]
        of_box = [change for change in changed if change.path.partition(".")[0] == box.path]
        lines = [shown(str(change).removeprefix(f"{box.path}."), LINE_LENGTH + 4) for change in of_box]
        mark = around[0] if around else "changed" if lines else "same"
        if mark in MARKS:
            box.title, box.width = f"{SIGNS[mark]} {box.title}", MARKS[mark].width
        box.classes = [mark]
        if lines or mark == "same":
            box.lines = first_few(lines, MOST_LINES)
    _mark_arrows(drawn, difference)
    before, after = (shown(graph.name, LINE_LENGTH) for graph in (difference.before, difference.after))
    drawn.name = f"{before} \N{RIGHTWARDS ARROW} {after}" if before != after else before
    signs = "   ".join(f"{sign} {how}" for how, sign in SIGNS.items()) if difference else "no difference"
    guards = {arrow.guard for arrow in drawn.arrows}
    not_drawn = [
        shown(f"{SIGNS[change.how]} {change}", 3 * LINE_LENGTH)
        for change in difference.changes
        if change.category not in _DRAWN
        and (change.category != "guard" or (change.how == "changed" and change.name not in guards))
    ]
    drawn.caption = [drawn.name, f"{signs} \N{MIDDLE DOT} {NUMBERS}", *first_few(not_drawn, MOST_LINES)]
    return drawn


def _union(before: GraphData, after: G) -> G:
    """A graph with all parts of both. Edges of the first come first: the last edge of a node is on the main line."""
    nodes = {**after.nodes, **{name: node for name, node in before.nodes.items() if name not in after.nodes}}
    for name, node in after.nodes.items():
        former = before.nodes.get(name)
        if node.body is not None and former is not None and former.body is not None:
            nodes[name] = replace(node, body=_union(former.body, node.body))
    edges = {source: after.edges.get(source, ()) for source in (*after.edges, *before.edges)}
    for source, old in before.edges.items():
        edges[source] = (*(edge for edge in old if edge not in edges[source]), *edges[source])
    return replace(after, nodes=nodes, edges=edges, guards={**before.guards, **after.guards})


def _mark_arrows(drawn: Description, difference: Difference) -> None:
    """Mark arrows, give them the numbers of their own graph, and add those from another start."""
    old = {arrow.key: arrow for arrow in describe(difference.before).arrows}
    new = {arrow.key: arrow for arrow in describe(difference.after).arrows}
    orders = {
        change.path: [str(value).split(", ") for value in (change.before, change.after)]
        for change in difference.changes
        if change.category == "order"
    }
    for arrow in drawn.arrows:
        source, _, edge = arrow.key.partition(" -> ")
        before, after = old.pop(arrow.key, None), new.get(arrow.key)
        arrow.number = (after or before or arrow).number
        if before is None or after is None:
            arrow.mark = "added" if before is None else "removed"
        elif source in orders and len({order.index(edge) for order in orders[source] if edge in order}) > 1:
            arrow.mark, arrow.former = "changed", before.number
        elif before.expression != after.expression:
            arrow.mark = "changed"
    ends = {box.key for box in drawn.boxes}
    drawn.arrows += [
        replace(arrow, mark="removed", main=False) for arrow in old.values() if {arrow.tail, arrow.head} <= ends
    ]
