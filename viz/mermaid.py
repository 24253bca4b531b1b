"""The description of a graph as Mermaid text, which GitHub and many note-taking programs draw."""

from __future__ import annotations

import re
from collections.abc import Iterator

from graphtrain.viz.describe import Description
from graphtrain.viz.theme import LIGHT, colours_of


def to_mermaid(drawn: Description) -> str:
    """The Mermaid flowchart of a graph: guarded edges dashed, nested graphs as subgraphs, one colour per family."""
    names = {box.key: re.sub(r"\W+", "_", f"n{n}_{box.key}", flags=re.ASCII) for n, box in enumerate(drawn.boxes)}
    lines = ["---", f'title: "{_escaped(" · ".join(filter(None, drawn.caption)))}"', "---", "flowchart TB"]
    lines += _level(drawn, names, "", "  ")
    for number, arrow in enumerate(drawn.arrows):
        label = f'"{_escaped(arrow.label)}"'
        line = f"-. {label} .->" if arrow.guard is not None else f"-- {label} -->" if arrow.label else "-->"
        lines.append(f"  {names[arrow.tail]} {line} {names[arrow.head]}")
        if arrow.mark:
            lines.append(f"  linkStyle {number} stroke:{colours_of([arrow.mark])[1]},stroke-width:2px")
    return "\n".join(lines) + "\n"


def _level(drawn: Description, names: dict[str, str], inside: str, indent: str) -> Iterator[str]:
    boxes, bodies = drawn.inside(inside)
    for box in boxes:
        yield f'{indent}{names[box.key]}["{"<br/>".join(map(_escaped, [box.title or box.family, *box.lines]))}"]'
        if box.node is not None:
            fill, line = colours_of(box.classes)
            yield f"{indent}style {names[box.key]} fill:{fill},stroke:{line},color:{LIGHT.ink}"
    for body in bodies:
        yield f'{indent}subgraph {names[body.key]}["{_escaped(" · ".join([body.title, *body.lines]))}"]'
        yield from _level(drawn, names, body.key, indent + "  ")
        yield f"{indent}end"


def _escaped(text: str) -> str:
    """Text inside quotes: every character that means something to Mermaid, Markdown or HTML as an entity."""
    return "".join(f"#{ord(character)};" if character in '#&%`{}[]\\;*"<>' else character for character in text)
