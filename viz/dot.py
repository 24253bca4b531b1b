"""A picture as DOT, the language of Graphviz."""

from __future__ import annotations

import html
import math
from collections import Counter
from typing import TYPE_CHECKING

from graphtrain.viz.picture import END_MARK, Arrow, Box, Picture
from graphtrain.viz.theme import FAMILIES, HEAT_LEVELS, LIGHT, MARKS, SIGNS
from graphtrain.viz.wording import runs_line

if TYPE_CHECKING:
    from graphviz import Digraph

# Two fonts of nearly the same widths, of which most systems have one: an SVG laid out with either and read with the
# other keeps its text centred in the boxes.
FONT = "DejaVu Sans,Verdana,sans-serif"
_ONE_OUTLINE = ("cylinder", "note", "folder")  # a second one would run through the name
MOST_ROWS = 4  # of side trips; `fit` needs three

GRAPH = {
    "rankdir": "TB",
    "bgcolor": LIGHT.paper,
    "fontname": FONT,
    "fontcolor": LIGHT.ink,
    "nodesep": "0.2",
    "ranksep": "0.3",
    "pad": "0.15",
    "fontsize": "12",
}
NODE = {
    "fontname": FONT,
    "fontsize": "12",
    "fontcolor": LIGHT.ink,
    "style": "filled",
    "margin": "0.08,0.04",
    "height": "0.4",
}
EDGE = {"fontname": FONT, "fontsize": "10", "fontcolor": LIGHT.faint, "color": LIGHT.line, "arrowsize": "0.7"}
MARK = {"label": "", "fillcolor": LIGHT.line, "color": LIGHT.line, "class": "mark"}
ENDS = {
    "start": {"shape": "circle", "width": "0.16", "height": "0.16"},
    "end": {"shape": "doublecircle", "width": "0.11", "height": "0.11"},
}


def to_dot(picture: Picture) -> str:
    """The DOT text of a picture: what ``dot`` lays out, and what other tools read.

    Guarded edges are dashed and bear the name of their guard, with its expression as tooltip; numbers are priorities.
    Every element has the class of its family (and ``heat0`` to ``heat10``, ``current``), for styles.

    >>> from graphtrain.graph import Graph
    >>> from graphtrain.viz.picture import picture
    >>> print(to_dot(picture(Graph.load("evaluate"))).splitlines()[0])
    digraph evaluate {
    """
    from graphviz import Digraph, escape

    caption = {"label": _caption(picture.caption), "labelloc": "t"} if picture.caption else {}
    digraph = Digraph(escape(picture.name), graph_attr={**GRAPH, **caption}, node_attr=NODE, edge_attr=EDGE)
    _add_level(digraph, picture, "", Counter(key for arrow in picture.arrows for key in (arrow.source, arrow.target)))
    rows = _rows(picture)
    for arrow in picture.arrows:
        tail, head = picture.tail(arrow), picture.head(arrow)
        crosses = (tail, head) != (arrow.source, arrow.target)
        digraph.edge(tail, head, **_arrow_attributes(arrow, rows, crosses))
    return str(digraph.source)


def _add_level(digraph: Digraph, picture: Picture, inside: str, touching: Counter[str]) -> None:
    entries = {cluster.entry for cluster in picture.clusters}
    # In a cluster `dot` looks for loops from the first node on, so the start of the body has to be that.
    for box in sorted(picture.boxes, key=lambda box: box.key not in entries):
        if box.inside == inside:
            digraph.node(box.key, **_box_attributes(box, touching[box.key]))
    for cluster in picture.clusters:
        if cluster.node.inside == inside:
            with digraph.subgraph(name=f"cluster_{cluster.node.key}") as inner:
                inner.attr("graph", **_cluster_attributes(cluster.node))
                _add_level(inner, picture, cluster.node.key, touching)


def _box_attributes(box: Box, touching: int) -> dict[str, str]:
    from graphviz import escape

    if box.is_mark:
        return {**MARK, **ENDS[box.family], "tooltip": box.family}
    attributes = {
        "label": _label(box),
        "shape": FAMILIES[box.family].shape,
        "tooltip": escape(box.tooltip),
        "width": f"{min(3.0, max(0.75, 0.18 * touching)):.2f}",  # inches; a hub is wide, so that its arrows spread
        **_paint(box),
    }
    if box.mark in MARKS:
        attributes["style"] = f"filled,{MARKS[box.mark].style}"
    if box.mark == "changed" and FAMILIES[box.family].shape not in _ONE_OUTLINE:
        attributes["peripheries"] = "2"
    if box.main:
        attributes["group"] = f"main line of {box.inside}"
    return attributes


def _cluster_attributes(box: Box) -> dict[str, str]:
    from graphviz import escape

    return {
        "label": _label(box),
        "tooltip": escape(box.tooltip),
        "style": "filled,rounded",
        "margin": "10",
        "labeljust": "r",
        **_paint(box),
        **({"style": f"filled,rounded,{MARKS[box.mark].style}"} if box.mark in MARKS else {}),
    }


def _paint(box: Box) -> dict[str, str]:
    """Colours, thickness and classes: the family's, warmer the more often a node runs, thick where it runs next."""
    classes, fill, line, width = [box.family], LIGHT.fill(box.family), LIGHT.outline(box.family), 1.2
    if box.heat is not None:
        level = round(box.heat * HEAT_LEVELS)
        classes.append(f"heat{level}")
        fill, width = LIGHT.heated(level / HEAT_LEVELS), 1 + 1.5 * box.heat
    if box.mark:
        classes, fill, line, width = [box.mark], LIGHT.mark_fill(box.mark), LIGHT.line, 1.0
        if box.family == "nested":
            fill = LIGHT.paper
        if (mark := MARKS.get(box.mark)) is not None:
            line, width = LIGHT.marked(box.mark), mark.width
    if box.current:
        classes.append("current")
        line, width = LIGHT.current, 4.0
    return {"fillcolor": fill, "color": line, "penwidth": f"{width:.1f}", "class": " ".join(classes)}


def _label(box: Box) -> str:
    """An HTML-like label, in which Graphviz knows no escapes but those of HTML."""
    lines = [f'<font point-size="10">{html.escape(line)}</font>' for line in (*box.lines, *runs_line(box.runs))]
    sign = f"{SIGNS[box.mark]} " if box.mark in SIGNS else ""
    title = f"<b>{sign}{html.escape(box.title)}</b>"
    rows = "".join(f"<tr><td>{line}</td></tr>" for line in (title, *lines))
    return f'<<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{rows}</table>>'


def _caption(lines: tuple[str, ...]) -> str:
    """Lines above the drawing, the first one in bold."""
    rows = [f"<b>{html.escape(lines[0])}</b>", *map(html.escape, lines[1:])]
    return f"<{'<br/>'.join(rows)}<br/> >"


def _rows(picture: Picture) -> dict[Arrow, int]:
    """How many ranks down the side trips of a hub stand: in several rows, or `decide` of `fit` makes it one wide row.

    A side trip is a node that leads nowhere but back or to the end.
    """
    leads_on = {arrow.source for arrow in picture.arrows if not arrow.back and not arrow.target.endswith(END_MARK)}
    trips: dict[str, list[Arrow]] = {}
    for arrow in picture.arrows:
        if not (arrow.back or arrow.main or arrow.target in leads_on or arrow.target.endswith(END_MARK)):
            trips.setdefault(arrow.source, []).append(arrow)
    rows: dict[Arrow, int] = {}
    for arrows in trips.values():
        count = min(MOST_ROWS, math.ceil(len(arrows) / 2)) if len(arrows) > 2 else 1
        rows |= {arrow: 1 + position % count for position, arrow in enumerate(arrows)}
    return rows


def _arrow_attributes(arrow: Arrow, rows: dict[Arrow, int], crosses: bool) -> dict[str, str]:
    from graphviz import escape

    attributes: dict[str, str] = {}
    if arrow.label:
        attributes["label"] = escape(f" {arrow.label} ")
    if arrow.guard is not None:
        attributes["style"] = "dashed"
        tooltip = arrow.guard if arrow.expression is None else f"{arrow.guard} = {arrow.expression}"
        attributes["tooltip"] = attributes["labeltooltip"] = escape(tooltip)
    if (mark := MARKS.get(arrow.mark)) is not None:
        colour = LIGHT.marked(arrow.mark)
        attributes |= {"color": colour, "fontcolor": colour, "penwidth": str(mark.width), "class": arrow.mark}
        if mark.style != "solid":
            attributes["style"] = mark.style
    if arrow.back and crosses:
        # Inside one level `dot` turns back edges round by itself and draws them better than unconstrained ones; one
        # that leaves a cluster would lift the whole cluster above its target.
        attributes["constraint"] = "false"
    if arrow.main:
        attributes["weight"] = "20"
    if rows.get(arrow, 1) > 1:
        attributes["minlen"] = str(rows[arrow])
    return attributes
