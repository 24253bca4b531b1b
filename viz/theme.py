"""How a picture looks: one colour and one shape per family of kinds, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

    @property
    def colours(self) -> dict[str, tuple[str, str]]:
        """The colours of the fill and of the lines of each class; empty where a class before it decides."""
        hues = {name: hue for name, (hue, _) in FAMILIES.items()} | {name: mark.colour for name, mark in MARKS.items()}
        colours = {name: (mix(self.paper, hue, self.tint), mix(hue, self.ink, self.edge)) for name, hue in hues.items()}
        colours["nested"] = mix(self.paper, hues["nested"], self.tint / 2), colours["nested"][1]  # background of a body
        colours |= {"same": (mix(self.paper, self.line, 0.06), self.line), "mark": (self.line, self.line)}
        levels = range(HEAT_LEVELS + 1)
        colours |= {f"heat{level}": (mix(self.paper, self.heat, level / HEAT_LEVELS), "") for level in levels}
        return {**colours, "current": ("", self.current)}


LIGHT = Scheme("#ffffff", "#1f2328", "#57606a", "#d1006c", "#f5a04a", tint=0.24, edge=0.25)
DARK = Scheme("#0d1117", "#e6edf3", "#a3b0bd", "#ff6bb5", "#96500f", tint=0.30, edge=0.10)


def mix(first: str, second: str, share: float) -> str:
    """The colour between two: `share` of the second one."""
    pairs = [[int(colour[place : place + 2], 16) for colour in (first, second)] for place in (1, 3, 5)]
    return "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in pairs)


def colours_of(classes: list[str]) -> tuple[str, str]:
    """The colours of the fill and of the lines of a box in light; later classes override earlier ones."""
    fills, lines = zip(*(_LIGHT_COLOURS[name] for name in classes), strict=True)
    return [*filter(None, fills)][-1], [*filter(None, lines)][-1]


_LIGHT_COLOURS = LIGHT.colours
_RULES = """\
text { fill: var(--ink) }
:is(.edge, .return) text { fill: var(--line) }
:is(path, polygon, polyline, ellipse) { stroke: var(--line) }
:is(.node, .cluster) :is(path, polygon, ellipse):not([fill="none"]) { fill: var(--fill) }
.graph > polygon { fill: var(--paper); stroke: none }
.edge polygon { fill: var(--line) }
.edge:hover path { stroke-width: 2.5 }
""".splitlines()


def style() -> str:
    """The CSS of a drawing, in light and in dark; the drawing has the light colours too, for viewers without styles."""
    light = _scoped([*_variables(LIGHT), *_RULES])
    return f"{light}@media (prefers-color-scheme: dark) {{\n{_scoped(_variables(DARK))}}}\n"


def _scoped(rules: Iterable[str]) -> str:
    return "".join(f"svg.graphtrain {rule}\n" for rule in rules)


def _variables(scheme: Scheme) -> Iterator[str]:
    """What each class sets; rules that come later override earlier ones."""
    yield f"{{ --paper: {scheme.paper}; --ink: {scheme.ink}; --fill: none; --line: {scheme.line} }}"
    for name, (fill, line) in scheme.colours.items():
        yield f".{name} {{ {f'--fill: {fill};' if fill else ''}{f'--line: {line}' if line else ''} }}"
    yield f".cluster:is({', '.join(f'.{name}' for name in (*MARKS, 'same'))}) {{ --fill: {scheme.paper} }}"
