"""How a picture looks: one colour and one shape per family of kinds, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A group of kinds with one style: distinguished by colour, and by shape for readers who see no colour.

    Arguments:
        colour: the hue, from the palette of Okabe and Ito (2008), safe for every common colour blindness.
        shape: the shape in DOT.
        brackets: what opens and closes the shape in Mermaid.
    """

    colour: str
    shape: str
    brackets: tuple[str, str]


FAMILIES: dict[str, Family] = {
    "data": Family("#56b4e9", "cylinder", ("[(", ")]")),
    "compute": Family("#0072b2", "box", ("[", "]")),
    "gradient": Family("#e69f00", "hexagon", ("{{", "}}")),
    "update": Family("#d55e00", "ellipse", ("([", "])")),
    "choice": Family("#f0e442", "diamond", ("{", "}")),
    "bookkeeping": Family("#999999", "note", ("[/", "/]")),
    "saving": Family("#009e73", "folder", ("[[", "]]")),
    "ranks": Family("#cc79a7", "trapezium", ("[/", "\\]")),
    "nested": Family("#cc79a7", "box", ("[", "]")),
    "other": Family("#7f7f7f", "octagon", ("(", ")")),
}


@dataclass(frozen=True)
class Mark:
    """How a difference looks: it is marked by colour, by line, and by a sign before the name.

    Arguments:
        colour: from the same palette.
        sign: the sign before the name.
        style: of the lines, in DOT: of an outline, and of an arrow that is not dashed for its guard.
        width: of the lines.
    """

    colour: str
    sign: str
    style: str
    width: float


MARKS: dict[str, Mark] = {
    "added": Mark("#009e73", "+", "solid", 2.6),
    "removed": Mark("#d55e00", "\u2212", "dotted", 1.8),
    "changed": Mark("#0072b2", "~", "solid", 1.8),
}
SIGNS: dict[str, str] = {name: mark.sign for name, mark in MARKS.items()}


@dataclass(frozen=True)
class Scheme:
    """The colours of one background: light (in the picture itself) or dark (by a style in the SVG)."""

    paper: str
    ink: str
    faint: str
    line: str
    current: str
    heat: str
    tint: float
    edge: float

    def look(self, name: str) -> tuple[str, str]:
        """The colours of the fill and of the lines of a class; empty where it leaves them as they are.

        A class is a family, a mark, ``"same"``, ``"mark"`` (the start and the end), ``"current"``, and ``"heat0"`` (the
        colour of the paper) to ``"heat10"``.
        """
        if name == "current":
            return "", self.current
        if name.startswith("heat"):
            return mix(self.paper, self.heat, int(name[4:]) / HEAT_LEVELS), ""
        if name in ("same", "mark"):
            return (mix(self.paper, self.line, 0.06) if name == "same" else self.line), self.line
        colour = MARKS[name].colour if name in MARKS else FAMILIES[name].colour
        tint = self.tint / 2 if name == "nested" else self.tint  # the background of a body
        return mix(self.paper, colour, tint), mix(colour, self.ink, self.edge)


LIGHT = Scheme("#ffffff", "#1f2328", "#57606a", "#57606a", "#d1006c", "#f5a04a", tint=0.24, edge=0.25)
DARK = Scheme("#0d1117", "#e6edf3", "#a3b0bd", "#9aa7b4", "#ff6bb5", "#96500f", tint=0.30, edge=0.10)

HEAT_LEVELS = 10  # steps of colour in a heat picture
_SHAPES = ":is(path, polygon, polyline, ellipse)"


def mix(first: str, second: str, share: float) -> str:
    """The colour between two: `share` of the second one.

    >>> mix("#000000", "#ffffff", 0.5)
    '#808080'
    """
    pairs = zip(_channels(first), _channels(second), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def adaptive(svg: str, panel: bool = False) -> str:
    """A drawn SVG that follows the reader's light or dark scheme.

    The light colours stay in the drawing, for viewers without styles; the dark ones are added as a style that stands
    right after the opening ``<svg ...>`` tag and applies to nothing outside this drawing.

    Arguments:
        svg: what Graphviz wrote for `to_dot`.
        panel: give the drawing a background of its own, for a page whose colours may not follow the system's (a
            notebook). Default: transparent.

    >>> adaptive('<svg width="8pt">\\n<g/></svg>').startswith('<svg class="graphtrain" width="8pt">\\n<style>')
    True
    """
    head, opening, rest = svg.partition("<svg")
    tag, closing, body = rest.partition(">")
    assert opening and closing, "not an SVG"
    return f'{head}<svg class="graphtrain"{tag}>\n<style>\n{_style(panel)}</style>{body}'


def _style(panel: bool) -> str:
    """CSS; it wins over the attributes of the drawing, whose elements carry the classes that `to_dot` gave them."""
    always = [".graph > polygon { fill: none }", ".edge:hover path { stroke-width: 2.5 }"]
    dark = [*rules(DARK)]
    if panel:
        always.append(f"{{ background: {LIGHT.paper} }}")
        dark.append(f"{{ background: {DARK.paper} }}")
    lines = [*always, "@media (prefers-color-scheme: dark) {", *dark]
    return "".join(f"{line if line.startswith('@') else f'svg.graphtrain {line}'}\n" for line in lines) + "}\n"


def rules(scheme: Scheme) -> Iterator[str]:
    """The rules of CSS that paint a drawing in the colours of a scheme, without what they are restricted to."""
    yield f".graph text {{ fill: {scheme.ink} }}"
    yield f":is(.edge, .return) text {{ fill: {scheme.faint} }}"
    yield f".edge path {{ stroke: {scheme.line} }}"
    yield f".edge polygon {{ fill: {scheme.line}; stroke: {scheme.line} }}"
    # Only what is filled is painted: the second strokes of a cylinder or a folded corner are lines with no fill.
    filled = f'{_SHAPES}:not([fill="none"])'
    for name in (*FAMILIES, *MARKS, "same", *(f"heat{level}" for level in range(HEAT_LEVELS + 1)), "mark"):
        fill, line = scheme.look(name)
        if line:
            yield f":is(.node, .cluster).{name} {_SHAPES} {{ stroke: {line} }}"
        if fill:
            yield f":is(.node, .cluster).{name} {filled} {{ fill: {fill} }}"
    for name in (*MARKS, "same"):
        yield f".cluster.{name} {filled} {{ fill: {scheme.paper} }}"
    for name in MARKS:
        _, colour = scheme.look(name)
        yield f".edge.{name} path {{ stroke: {colour} }}"
        yield f".edge.{name} :is(polygon, text) {{ fill: {colour} }}"
        yield f".edge.{name} polygon {{ stroke: {colour} }}"
    yield f":is(.node, .cluster).current {_SHAPES} {{ stroke: {scheme.current}; stroke-width: 4 }}"
