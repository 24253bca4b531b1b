"""A picture as Mermaid text, which GitHub and many note-taking programs draw."""

from __future__ import annotations

import re
from collections.abc import Iterator

from graphtrain.viz.picture import Arrow, Box, Picture
from graphtrain.viz.theme import FAMILIES, LIGHT, MARKS


def to_mermaid(picture: Picture) -> str:
    """The Mermaid flowchart of a picture: guarded edges dashed, nested graphs as subgraphs, one class per family.

    The caption is its title, and edges that return to a hub end in its name, as in `to_dot`. Mermaid has no tooltips on
    edges, so expressions are left out.

    >>> from graphtrain import Graph
    >>> from graphtrain.viz.picture import picture
    >>> print([line for line in to_mermaid(picture(Graph.load("evaluate"))).splitlines() if "last_batch" in line][0])
      n_eval_batch -. "1 last_batch" .-> n_end_evaluation
    """
    names = _identifiers([box.key for box in picture.boxes])
    title = " \N{MIDDLE DOT} ".join(filter(None, picture.caption))
    lines = ["---", f'title: "{_escaped(title)}"', "---"] if title else []
    lines += ["flowchart TB", *_level(picture, names, "", "  ")]
    lines += [f"  {names[tail]} {_line(arrow)} {names[head]}" for arrow, tail, head in picture.ends()]
    lines += [f"  {line}" for line in _styles(picture, names)]
    return "\n".join(lines) + "\n"


def _identifiers(keys: list[str]) -> dict[str, str]:
    """An identifier for every key; the prefix keeps them apart from the words of the language, such as `end`."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for key in keys:
        name = base = "n_" + re.sub(r"\W+", "_", key, flags=re.ASCII)
        number = 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        names[key] = name
    return names


def _level(picture: Picture, names: dict[str, str], inside: str, indent: str) -> Iterator[str]:
    boxes, bodies = picture.inside(inside)
    for box in boxes:
        yield indent + names[box.key] + _shape(box)
    for body in bodies:
        yield f'{indent}subgraph {names[body.key]}["{_label(body, " · ")}"]'
        yield from _level(picture, names, body.key, indent + "  ")
        yield f"{indent}end"


def _shape(box: Box) -> str:
    if box.family == "return":
        return f'["{_escaped(box.words)}"]'
    if box.is_mark:
        return '((" "))' if box.family == "start" else '(((" ")))'
    opening, closing = FAMILIES[box.family].brackets
    return f'{opening}"{_label(box)}"{closing}'


def _label(box: Box, between: str = "<br/>") -> str:
    """Title and lines; the title of a subgraph must be one line, or the first node covers it."""
    return between.join(_escaped(line) for line in (box.heading, *box.text))


def _line(arrow: Arrow) -> str:
    label = f'"{_escaped(arrow.label)}"'
    if arrow.guard is not None:
        return f"-. {label} .->"
    return f"-- {label} -->" if arrow.label else "-->"


def _styles(picture: Picture, names: dict[str, str]) -> Iterator[str]:
    """One class per family that occurs; heat and position on top of it."""
    members: dict[str, list[str]] = {}
    for box in picture.boxes:
        for kind in box.classes:
            members.setdefault(kind, []).append(names[box.key])
    # Later definitions win: heat over families, the position over both.
    for kind in sorted(members, key=lambda kind: 2 if kind == "current" else 1 if kind.startswith("heat") else 0):
        yield f"classDef {kind} {_declarations(kind)}"
        yield f"class {','.join(members[kind])} {kind}"
    for number, arrow in enumerate(picture.arrows):
        if arrow.mark in MARKS:
            yield f"linkStyle {number} {_stroke(arrow.mark)},color:{LIGHT.look(arrow.mark)[1]}"


def _declarations(kind: str) -> str:
    if kind == "return":
        return f"fill:none,stroke:none,color:{LIGHT.faint}"
    fill, line = LIGHT.look(kind)
    stroke = _stroke(kind) if kind in MARKS else f"stroke:{line}" if line else ""
    width = "stroke-width:4px" if kind == "current" else ""
    ink = f"color:{LIGHT.ink}" if fill and line and kind != "mark" else ""
    return ",".join(filter(None, (fill and f"fill:{fill}", stroke, width, ink)))


def _stroke(mark: str) -> str:
    dotted = ",stroke-dasharray:2 4" if MARKS[mark].style == "dotted" else ""
    return f"stroke:{LIGHT.look(mark)[1]},stroke-width:{MARKS[mark].width}px{dotted}"


def _escaped(text: str) -> str:
    """Text inside quotes: every character that means something to Mermaid, Markdown or HTML as an entity.

    >>> _escaped('a "b" <i> %%{init}')
    'a #quot;b#quot; #lt;i#gt; #37;#37;#123;init#125;'
    """
    return "".join(_ENTITIES.get(character, character) for character in text)


_ENTITIES = {character: f"#{ord(character)};" for character in "#&%`{}[]\\;*"} | {
    '"': "#quot;",
    "<": "#lt;",
    ">": "#gt;",
}
