"""How a picture looks: one colour and one shape per family of kinds, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

# The hue, from the palette of Okabe and Ito (2008), safe for every common colour blindness; and the shape in DOT, for
# readers who see no colour.
FAMILIES = {
    "data": ("#56b4e9", "cylinder"),
    "compute": ("#0072b2", "box"),
    "gradient": ("#e69f00", "hexagon"),
    "update": ("#d55e00", "ellipse"),
    "choice": ("#f0e442", "diamond"),
    "bookkeeping": ("#999999", "note"),
    "saving": ("#009e73", "folder"),
    "ranks": ("#cc79a7", "trapezium"),
    "nested": ("#cc79a7", "box"),
    "other": ("#7f7f7f", "octagon"),
}


class Mark(NamedTuple):
    """How a difference looks."""

    colour: str
    sign: str  # before the name
    style: str  # of lines, in DOT
    width: float


MARKS = {
    "added": Mark("#009e73", "+", "solid", 2.6),
    "removed": Mark("#d55e00", "\N{MINUS SIGN}", "dotted", 1.8),
    "changed": Mark("#0072b2", "~", "solid", 1.8),
}
SIGNS = {name: mark.sign for name, mark in MARKS.items()}
HEAT_LEVELS = 10  # steps of colour in a heat picture


class Scheme(NamedTuple):
    """The colours of one background: light (in the drawing itself) or dark (by a style in the SVG)."""

    paper: str
    ink: str
    line: str
    current: str
    heat: str
    tint: float
    edge: float

    def look(self, *classes: str) -> tuple[str, str]:
        """The colours of the fill and of the lines of a box; later classes override earlier ones."""
        fill = line = ""
        for name in classes:
            if name == "current":
                line = self.current
            elif name.startswith("heat"):
                fill = mix(self.paper, self.heat, int(name[4:]) / HEAT_LEVELS)
            elif name in ("same", "mark"):
                fill, line = mix(self.paper, self.line, 0.06 if name == "same" else 1.0), self.line
            else:
                colour = MARKS[name].colour if name in MARKS else FAMILIES[name][0]
                tint = self.tint / 2 if name == "nested" else self.tint  # the background of a body
                fill, line = mix(self.paper, colour, tint), mix(colour, self.ink, self.edge)
        return fill, line


LIGHT = Scheme("#ffffff", "#1f2328", "#57606a", "#d1006c", "#f5a04a", tint=0.24, edge=0.25)
DARK = Scheme("#0d1117", "#e6edf3", "#a3b0bd", "#ff6bb5", "#96500f", tint=0.30, edge=0.10)


def mix(first: str, second: str, share: float) -> str:
    """The colour between two: `share` of the second one.

    >>> mix("#000000", "#ffffff", 0.5)
    '#808080'
    """
    pairs = [[int(colour[place : place + 2], 16) for colour in (first, second)] for place in (1, 3, 5)]
    return "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in pairs)


def style() -> str:
    """The CSS of a drawing, in light and in dark; the drawing has the light colours too, for viewers without styles."""
    light, dark = (
        "".join(f"svg.graphtrain {rule}\n" for rule in rules)
        for rules in ((*_variables(LIGHT), *_RULES), _variables(DARK))
    )
    return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _variables(scheme: Scheme) -> Iterator[str]:
    """What each class sets; rules that come later override earlier ones."""
    yield f"{{ --paper: {scheme.paper}; --ink: {scheme.ink}; --fill: none; --line: {scheme.line} }}"
    for name in (*FAMILIES, *MARKS, "same", "mark", *(f"heat{level}" for level in range(HEAT_LEVELS + 1)), "current"):
        looks = zip(("fill", "line"), scheme.look(name), strict=True)
        yield f".{name} {{ {'; '.join(f'--{what}: {colour}' for what, colour in looks if colour)} }}"
    yield f".cluster:is({', '.join(f'.{name}' for name in (*MARKS, 'same'))}) {{ --fill: {scheme.paper} }}"


_RULES = (
    "text { fill: var(--ink) }",
    ":is(.edge, .return) text { fill: var(--line) }",
    ":is(path, polygon, polyline, ellipse) { stroke: var(--line) }",
    # Only what is filled is painted: the second strokes of a cylinder or a folded corner are lines with no fill.
    ':is(.node, .cluster) :is(path, polygon, ellipse):not([fill="none"]) { fill: var(--fill) }',
    ".graph > polygon { fill: var(--paper); stroke: none }",
    ".edge polygon { fill: var(--line) }",
    ".edge:hover path { stroke-width: 2.5 }",
)
