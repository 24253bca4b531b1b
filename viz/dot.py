"""A picture as DOT, the language of Graphviz."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphtrain.viz.picture import END_MARK, START_MARK, Arrow, Box, Picture
from graphtrain.viz.theme import FAMILIES, LIGHT, MARKS

if TYPE_CHECKING:
    from graphviz import Digraph

# Two fonts of nearly the same widths, one of which most systems have: an SVG laid out with either and shown with the
# other keeps its text centred in the boxes.
FONT = "DejaVu Sans,Verdana,sans-serif"
_ONE_OUTLINE = ("cylinder", "note", "folder")  # a second one would run through the name

GRAPH = {
    "rankdir": "TB",
    "bgcolor": LIGHT.paper,
    "fontname": FONT,
    "fontcolor": LIGHT.ink,
    "nodesep": "0.2",
    "ranksep": "0.3",
    "pad": "0.15",
    "fontsize": "12",
    "compound": "true",  # an arrow to a body ends at its frame
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
HIDDEN = {"style": "invis", "weight": "0"}
RETURN = {"shape": "plain", "fontsize": "10", "fontcolor": LIGHT.faint, "style": "", "class": "return"}


def to_dot(picture: Picture, *, arrow_ids: bool = False) -> str:
    """The DOT text of a picture: what ``dot`` lays out, and what other tools read.

    Guarded edges are dashed and have the name of their guard, with its expression as tooltip; numbers are priorities.
    An edge that returns to a hub leads to a node of the class ``return`` with the name of the hub.
    Every element has the class of its family (and ``heat0`` to ``heat10``, ``current``), for styles.

    Arguments:
        arrow_ids: True gives each arrow its number in the picture as its id, as in ``arrow3``. Default: False.

    >>> from graphtrain import Graph
    >>> from graphtrain.viz.picture import picture
    >>> print(to_dot(picture(Graph.load("evaluate"))).splitlines()[0])
    digraph evaluate {
    """
    from graphviz import Digraph, escape

    caption = {"label": _caption(picture.caption), "labelloc": "t"} if picture.caption else {}
    digraph = Digraph(escape(picture.name), graph_attr={**GRAPH, **caption}, node_attr=NODE, edge_attr=EDGE)
    touching = Counter(key for arrow in picture.arrows for key in (arrow.source, arrow.target))
    _add_level(digraph, picture, "", touching)
    bodies = {box.key for box in picture.bodies}
    for number, (arrow, tail, head) in enumerate(picture.ends()):
        identity = {"id": f"arrow{number}"} if arrow_ids else {}
        digraph.edge(tail, head, **identity, **_arrow_attributes(arrow, bodies))
    for upper, lower in _hidden_edges(picture):
        digraph.edge(upper, lower, **HIDDEN)
    return str(digraph.source)


def _hidden_edges(picture: Picture) -> Iterator[tuple[str, str]]:
    """Vertical order without arrows: the start is the highest point, the end of a body its lowest."""
    led_to = {arrow.target for arrow in picture.arrows if not arrow.back}
    for box in picture.boxes:
        prefix = f"{box.inside}/" if box.inside else ""
        if box.family == "return":
            if box.inside:
                yield box.key, prefix + END_MARK
        elif box.family != "start" and box.key not in led_to:
            yield prefix + START_MARK, f"{box.key}/{START_MARK}" if box.is_body else box.key


def _add_level(digraph: Digraph, picture: Picture, inside: str, touching: Counter[str]) -> None:
    boxes, bodies = picture.inside(inside)
    for box in boxes:
        digraph.node(box.key, **_box_attributes(box, touching[box.key]))
    for body in bodies:
        with digraph.subgraph(name=f"cluster_{body.key}") as inner:
            inner.attr("graph", **_box_attributes(body, touching[body.key]))
            _add_level(inner, picture, body.key, touching)


def _box_attributes(box: Box, touching: int) -> dict[str, str]:
    from graphviz import escape

    if box.family == "return":
        return {**RETURN, "label": f"<<i>{html.escape(box.words)}</i>>", "tooltip": escape(box.words)}
    if box.is_mark:
        main = {"group": f"main line of {box.inside}"} if box.main else {}
        return {**MARK, **ENDS[box.family], **main, "tooltip": box.family}
    # An HTML-like label, in which Graphviz knows no escapes but those of HTML.
    lines = [f'<font point-size="10">{html.escape(line)}</font>' for line in box.text]
    label = _table([f"<b>{html.escape(box.heading)}</b>", *lines])
    attributes = {"label": label, "tooltip": escape(box.tooltip), **_paint(box)}
    styles = [MARKS[box.mark].style] if box.mark in MARKS else []
    if box.is_body:  # one line, inside the invisible frame
        style = ",".join(["filled", "rounded", *styles])
        return {**attributes, "style": style, "margin": "12", "peripheries": "1"}
    attributes["shape"] = FAMILIES[box.family].shape
    attributes["width"] = f"{min(3.0, max(0.75, 0.18 * touching)):.2f}"  # inches; a hub is wide: its arrows spread
    if styles:
        attributes["style"] = ",".join(["filled", *styles])
    if box.mark == "changed" and attributes["shape"] not in _ONE_OUTLINE:
        attributes["peripheries"] = "2"
    if box.main:
        attributes["group"] = f"main line of {box.inside}"
    return attributes


def _paint(box: Box) -> dict[str, str]:
    """Colours, thickness and classes: the family's, warmer the more often a node runs, thick where it runs next."""
    fill = line = ""
    for name in box.classes:
        own_fill, own_line = LIGHT.look(name)
        fill, line = own_fill or fill, own_line or line
    width = 1.2 if box.heat is None else 1 + 1.5 * box.heat
    if box.mark:
        width = MARKS[box.mark].width if box.mark in MARKS else 1.0
        fill = LIGHT.paper if box.family == "nested" else fill
    width = 4.0 if box.current else width
    return {"fillcolor": fill, "color": line, "penwidth": f"{width:.1f}", "class": " ".join(box.classes)}


def _caption(lines: tuple[str, ...]) -> str:
    """Lines above the drawing: the title in bold, the rest in smaller type."""
    # Graphviz refuses a pair of tags with nothing between.
    title = f'<font point-size="14"><b>{html.escape(lines[0])}</b></font>' if lines[0] else ""
    rows = [title, *(f'<font point-size="10">{html.escape(line)}</font>' for line in lines[1:])]
    return _table([*filter(None, rows), '<font point-size="4"> </font>'])


def _table(rows: list[str]) -> str:
    """An HTML-like label of centred lines."""
    cells = "".join(f"<tr><td>{row}</td></tr>" for row in rows)
    return f'<<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{cells}</table>>'


def _arrow_attributes(arrow: Arrow, bodies: set[str]) -> dict[str, str]:
    from graphviz import escape

    attributes: dict[str, str] = {}
    if arrow.label:
        attributes["label"] = escape(f" {arrow.label} ")
    if arrow.guard is not None:
        attributes["style"] = "dashed"
        tooltip = arrow.guard if arrow.expression is None else f"{arrow.guard} = {arrow.expression}"
        attributes["tooltip"] = attributes["labeltooltip"] = escape(tooltip)
    if (mark := MARKS.get(arrow.mark)) is not None:
        _, colour = LIGHT.look(arrow.mark)
        attributes |= {"color": colour, "fontcolor": colour, "penwidth": str(mark.width), "class": arrow.mark}
        if mark.style != "solid":
            attributes["style"] = mark.style
    if arrow.source in bodies:
        attributes["ltail"] = f"cluster_{arrow.source}"
    if arrow.target in bodies and not arrow.returns_by:
        attributes["lhead"] = f"cluster_{arrow.target}"
    if arrow.back and not arrow.returns_by:
        # If `dot` chooses which edges to reverse, a cluster may be placed above the start.
        attributes["constraint"] = "false"
    if {arrow.source, arrow.target} & bodies and not arrow.back:
        # For `dot` the direction of an edge of a cluster is a cost that grows with the weight, not a rule: with 200, a
        # body may still be drawn above the start.
        attributes["weight"] = "1000"
    elif arrow.main:
        attributes["weight"] = "20"
    return attributes
