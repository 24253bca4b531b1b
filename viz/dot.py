"""The description of a graph as DOT, the language of Graphviz."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator

from graphviz import Digraph, escape

from graphtrain.graph.elements import kind_text, settings_of
from graphtrain.printable import shown
from graphtrain.viz.describe import END_MARK, START_MARK, TOOLTIP_LENGTH, Arrow, Box, Description
from graphtrain.viz.theme import FAMILIES, LIGHT, MARKS, colours_of

# Two fonts of nearly the same widths, one of which most systems have: an SVG laid out with either and shown with the
# other keeps its text centred in the boxes.
FONT = {"fontname": "DejaVu Sans,Verdana,sans-serif", "fontcolor": LIGHT.ink, "fontsize": "12"}
SMALL = {"fontsize": "10", "fontcolor": LIGHT.line}
GRAPH = {
    **FONT,
    "bgcolor": LIGHT.paper,
    "nodesep": "0.2",
    "ranksep": "0.3",
    "pad": "0.15",
    "compound": "true",  # an arrow to a body ends at its frame
}
NODE = {**FONT, "style": "filled", "margin": "0.08,0.04", "height": "0.4"}
EDGE = {**FONT, **SMALL, "color": LIGHT.line, "arrowsize": "0.7"}
MARK = {"label": "", "fillcolor": LIGHT.line, "color": LIGHT.line, "class": "mark"}
SHAPES = {
    "start": {**MARK, "shape": "circle", "width": "0.16", "height": "0.16"},
    "end": {**MARK, "shape": "doublecircle", "width": "0.11", "height": "0.11"},
    "return": {**SMALL, "shape": "plain", "style": "", "class": "return"},
}


def to_dot(drawn: Description) -> str:
    """The DOT text of a graph: what ``dot`` lays out, and what other tools read.

    Guarded edges are dashed and have the name of their guard, with its expression as tooltip; numbers are priorities.
    An edge that returns to a hub leads to a node of the class ``return`` with the name of the hub.
    Every element has the class of its family (and ``heat0`` to ``heat10``, ``current``), for styles. In an SVG, the
    edges have the ids ``edge1``, ``edge2``, ... in the order of the arrows.
    """
    digraph = Digraph(escape(drawn.name), graph_attr=GRAPH, node_attr=NODE, edge_attr=EDGE)
    if drawn.caption:
        lines = [(14, f"<b>{html.escape(drawn.caption[0])}</b>" if drawn.caption[0] else "")]
        lines += [(10, html.escape(line)) for line in drawn.caption[1:]]
        digraph.attr("graph", label=_table([*lines, (4, " ")]), labelloc="t")
    touching = Counter(key for arrow in drawn.arrows for key in (arrow.source, arrow.target))
    _add_level(digraph, drawn, "", touching)
    bodies = {box.key for box in drawn.boxes if box.is_body}
    for arrow in drawn.arrows:
        digraph.edge(arrow.tail, arrow.head, **_of_arrow(arrow, bodies))
    for upper, lower in _hidden_edges(drawn):
        digraph.edge(upper, lower, style="invis", weight="0")
    return str(digraph.source)


def _hidden_edges(drawn: Description) -> Iterator[tuple[str, str]]:
    """Vertical order without arrows: the start is the highest point, the end of a body its lowest."""
    led_to = {arrow.target for arrow in drawn.arrows if not arrow.back}
    for box in drawn.boxes:
        prefix = f"{box.inside}/" if box.inside else ""
        if box.family == "return":
            if box.inside:
                yield box.key, prefix + END_MARK
        elif box.family != "start" and box.key not in led_to:
            yield prefix + START_MARK, f"{box.key}/{START_MARK}" if box.is_body else box.key


def _add_level(digraph: Digraph, drawn: Description, inside: str, touching: Counter[str]) -> None:
    boxes, bodies = drawn.inside(inside)
    for box in boxes:
        digraph.node(box.key, **_of_box(box, touching[box.key]))
    for body in bodies:
        with digraph.subgraph(name=f"cluster_{body.key}") as inner:
            inner.attr("graph", **_of_box(body, 0))
            _add_level(inner, drawn, body.key, touching)


def _of_box(box: Box, touching: int) -> dict[str, str]:
    group = {"group": f"main line of {box.inside}"} if box.main and not box.is_body else {}
    if box.family == "return":
        return {**SHAPES["return"], "label": f"<<i>{html.escape(box.title)}</i>>", "tooltip": escape(box.title)}
    if box.node is None:
        return {**SHAPES[box.family], **group, "tooltip": box.family}
    fill, line = colours_of(box.classes)
    mark = MARKS.get(box.classes[0])
    styles = ["filled", *(["rounded"] if box.is_body else []), *([mark.style] if mark is not None else [])]
    words = [box.node.name, kind_text(box.node), *settings_of(box.node)]
    attributes = {
        "label": _table([(12, f"<b>{html.escape(box.title)}</b>"), *((10, html.escape(line)) for line in box.lines)]),
        "tooltip": escape(shown("; ".join(filter(None, words)), TOOLTIP_LENGTH)),
        "fillcolor": LIGHT.paper if box.is_body and box.classes[0] != box.family else fill,
        "color": line,
        "penwidth": f"{box.width:.1f}",
        "class": " ".join(box.classes),
        "style": ",".join(styles),
    }
    if box.is_body:  # one line, inside the invisible frame
        return {**attributes, "margin": "12", "peripheries": "1"}
    width = f"{min(3.0, max(0.75, 0.18 * touching)):.2f}"  # inches; a hub is wide: its arrows spread
    return {**attributes, **group, "shape": FAMILIES[box.family][1], "width": width}


def _table(rows: list[tuple[int, str]]) -> str:
    """An HTML-like label of centred lines, each with its size; Graphviz knows no escapes in it but those of HTML."""
    cells = "".join(f'<tr><td><font point-size="{size}">{row}</font></td></tr>' for size, row in rows if row)
    return f'<<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{cells}</table>>'


def _of_arrow(arrow: Arrow, bodies: set[str]) -> dict[str, str]:
    lines = [arrow.label] if arrow.label else []
    lines += [f"{arrow.count:,}\N{MULTIPLICATION SIGN}"] if arrow.count is not None else []
    attributes = {"label": "\\n".join(f" {escape(line)} " for line in lines)} if lines else {}
    if arrow.guard is not None:
        tooltip = escape(f"{arrow.guard} = {arrow.expression}" if arrow.expression else arrow.guard)
        attributes |= {"style": "dashed", "tooltip": tooltip, "labeltooltip": tooltip}
    if (mark := MARKS.get(arrow.mark)) is not None:
        _, colour = colours_of([arrow.mark])
        attributes |= {"color": colour, "fontcolor": colour, "penwidth": str(mark.width), "class": arrow.mark}
        if mark.style != "solid":
            attributes["style"] = mark.style
    if arrow.source in bodies:
        attributes["ltail"] = f"cluster_{arrow.source}"
    if arrow.head == f"{arrow.target}/{START_MARK}":
        attributes["lhead"] = f"cluster_{arrow.target}"
    if arrow.back and arrow.head in (arrow.target, f"{arrow.target}/{START_MARK}"):
        # If `dot` chooses which edges to reverse, a cluster may be placed above the start.
        attributes["constraint"] = "false"
    if {arrow.source, arrow.target} & bodies and not arrow.back:
        # For `dot` the direction of an edge is a cost, not a rule: with 200, a body may be drawn above the start.
        attributes["weight"] = "1000"
    elif arrow.main:
        attributes["weight"] = "20"
    return attributes
