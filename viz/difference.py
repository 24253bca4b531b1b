"""Two graphs in one picture: parts of only one of them, and differences, by colour, line and sign."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from graphtrain.graph.difference import Change, Difference
from graphtrain.graph.elements import Edge, G, GraphData
from graphtrain.viz.picture import NUMBERS, START_MARK, TITLE_LENGTH, Arrow, Box, MarkedEdge, Picture, key_of, picture
from graphtrain.viz.theme import SIGNS
from graphtrain.viz.wording import LINE_LENGTH, first_few, one_line

MOST_LINES = 5  # lines of a node, and above the picture
_DRAWN = ("node", "kind", "parameter", "reads", "writes", "edge", "order", "start")


def difference_picture(difference: Difference) -> Picture:
    """The contents of a picture of a difference: the second graph, and in it the parts that only the first one has.

    Equal parts are grey. Added ones are green, thick, with ``+``; removed ones orange, dotted, with ``\N{MINUS SIGN}``;
    changed ones blue, double, with ``~``. Differences without a place in the picture are listed above it.

    >>> from graphtrain import Graph
    >>> fit = Graph.load("fit")
    >>> drawn = difference_picture(fit.diff(fit.insert("pause", "choice", after="step")))
    >>> [box.title for box in drawn.boxes if box.mark == "added"]
    ['pause']
    >>> [(arrow.source, arrow.target, arrow.mark) for arrow in drawn.arrows if arrow.mark in SIGNS]
    [('step', 'zero_grad', 'removed'), ('step', 'pause', 'added'), ('pause', 'zero_grad', 'added')]
    """
    drawn = picture(_union(difference.before, difference.after))
    changes: dict[str, list[Change]] = {}
    for change in difference.changes:
        if change.what in ("kind", "parameter", "reads", "writes"):
            changes.setdefault(_key(change.path.partition(".")[0]), []).append(change)
    marks = {_key(change.path): change.how for change in difference.changes if change.what == "node"}
    drawn = drawn.map_boxes(lambda box: _marked(box, marks, changes.get(box.key, [])))
    return replace(
        drawn,
        name=one_line(f"{difference.before.name} and {difference.after.name}"),
        arrows=tuple(_arrows(drawn, difference)),
        caption=tuple(_caption(difference, {arrow.guard for arrow in drawn.arrows})),
    )


def _key(path: str) -> str:
    return key_of(path.split("/"))


def _union(before: GraphData, after: G) -> G:
    """A graph with all parts of both; edges inside a node of only one of them look like that node."""
    nodes = {**after.nodes, **{name: node for name, node in before.nodes.items() if name not in after.nodes}}
    for name, node in after.nodes.items():
        former = before.nodes.get(name)
        if node.body is not None and former is not None and former.body is not None:
            nodes[name] = replace(node, body=_union(former.body, node.body))
    edges = {
        source: tuple(_both(before.edges.get(source, ()), after.edges.get(source, ()), before, after))
        for source in dict.fromkeys([*after.edges, *before.edges])
    }
    return replace(after, nodes=nodes, edges=edges, guards={**before.guards, **after.guards})


def _both(old: tuple[Edge, ...], new: tuple[Edge, ...], before: GraphData, after: GraphData) -> Iterator[MarkedEdge]:
    """The edges of a source in both graphs. Those of the first come first: the last edge is that of the main line."""
    for edge in old:
        if edge not in new:
            yield MarkedEdge(edge.target, edge.when, _number(old, edge), "removed")
    orders = [[edge for edge in edges if edge in old and edge in new] for edges in (old, new)]
    for edge in new:
        mark, was = "", ""
        if edge not in old:
            mark = "added"
        elif orders[0] != orders[1] and orders[0].index(edge) != orders[1].index(edge):
            mark, was = "changed", str(_number(old, edge))
        elif edge.when is not None and before.guards.get(edge.when) != after.guards.get(edge.when):
            mark = "changed"
        yield MarkedEdge(edge.target, edge.when, _number(new, edge), mark, was)


def _number(edges: tuple[Edge, ...], edge: Edge) -> int | None:
    return 1 + edges.index(edge) if len(edges) > 1 else None


def _marked(box: Box, marks: Mapping[str, str], changes: list[Change]) -> Box:
    around = [key for key in marks if box.key == key or box.key.startswith(f"{key}/")]
    if around:
        return replace(box, mark=marks[around[0]])
    if not changes:
        return replace(box, mark="same", lines=box.lines[:1] if box.family == "nested" else ())
    return replace(box, mark="changed", lines=tuple(first_few([_line(change) for change in changes], MOST_LINES)))


def _line(change: Change) -> str:
    before, after = change.values
    name = change.name.partition(".")[2] if change.what != "kind" else "kind"
    return one_line(f"{name}: {before} \N{RIGHTWARDS ARROW} {after}", LINE_LENGTH + 8)


def _arrows(drawn: Picture, difference: Difference) -> Iterator[Arrow]:
    marks = {box.key: box.mark for box in drawn.boxes}
    starts = {
        f"{_key(change.inside)}/" if change.inside else "": str(change.before)
        for change in difference.changes
        if change.what == "start"
    }
    for arrow in drawn.arrows:
        prefix, is_start, _ = arrow.source.rpartition(START_MARK)
        if is_start and prefix in starts:
            yield replace(arrow, target=prefix + key_of([starts[prefix]]), mark="removed", main=False)
            yield replace(arrow, mark="added")
        elif not arrow.mark and marks[arrow.source] in ("added", "removed"):
            yield replace(arrow, mark=marks[arrow.source])
        else:
            yield arrow


def _caption(difference: Difference, drawn_guards: set[str | None]) -> Iterator[str]:
    """The names, a legend of the signs, and differences without a place in the picture."""
    before, after = one_line(difference.before.name, LINE_LENGTH), one_line(difference.after.name, LINE_LENGTH)
    yield f"{before} \N{RIGHTWARDS ARROW} {after}" if before != after else before
    signs = "   ".join(f"{sign} {how}" for how, sign in SIGNS.items()) if difference else "no difference"
    yield f"{signs} \N{MIDDLE DOT} {NUMBERS}"
    rest = [
        f"{SIGNS[change.how]} {change}"
        for change in difference.changes
        if change.what not in _DRAWN
        and not (
            change.what == "guard" and (change.how != "changed" or one_line(change.name, TITLE_LENGTH) in drawn_guards)
        )
    ]
    yield from (one_line(line, 3 * LINE_LENGTH) for line in first_few(rest, MOST_LINES))
