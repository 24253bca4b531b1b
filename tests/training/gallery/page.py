"""The page of the gallery, made of the files that it shows: `python -m tests.training.gallery.page` writes it."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

from graphtrain import Graph
from tests.procedure import Procedure
from tests.shipped import OVERLAYS, ROOT
from tests.training.gallery.procedures import all_procedures

PAGE = ROOT / "docs" / "gallery.md"
_BEGINNING = """# Gallery

These procedures usually require subclassing a trainer. Here each is a graph, used with `--graph NAME` or
`Graph.load("NAME")`, or an overlay for any graph, used with `--overlay NAME` or `graph.overlay("NAME")`.
`graphtrain copy NAME my.toml` makes a copy to edit.

```console run
$ graphtrain check gan --overlay ema
gan: no problems (...)
```

The tests in `tests/training/gallery` check for each procedure that it gives the same weights as a plain PyTorch loop,
bit for bit, that it can be interrupted at every transition and resumed exactly, and that its example reaches the result
in the table. [Recipes](recipes.md) are shorter still.

"""


def page() -> str:
    """The text of the page."""
    procedures = all_procedures()
    rows = [
        "| | what it does | result of the example | baseline |",
        "| --- | --- | --- | --- |",
        *(_row(procedure) for procedure in procedures.values()),
    ]
    return _BEGINNING + "\n".join(rows) + "\n\n" + "\n".join(_section(each) for each in procedures.values())


def constants(procedure: Procedure) -> dict[str, Any]:
    """METRIC, LEVEL and BASELINE of the example."""
    return {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(procedure.example.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("METRIC", "BASELINE", "LEVEL")
    }


def draw(procedure: Procedure, path: Path) -> Path:
    """What it changes of `fit`; the graph alone where it shares no node with `fit`."""
    fit = Graph.load("fit")
    graph = fit.overlay(procedure.name) if procedure.name in OVERLAYS else Graph.load(procedure.name)
    return (fit.diff(graph) if "decide" in graph.nodes else graph).render(path)


def words_of(picture: Path) -> list[str]:
    """Its texts: the layout may differ between versions of graphviz."""
    return sorted(re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text(encoding="utf-8")))


def _row(procedure: Procedure) -> str:
    measured = constants(procedure)
    sign = "≥" if measured["LEVEL"] > measured["BASELINE"] else "≤"
    cells = (
        f"[{procedure.name}](#{procedure.name})",
        procedure.toml.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip(),
        f"`{measured['METRIC']}` {sign} {measured['LEVEL']}",
        measured["BASELINE"],
    )
    return f"| {' | '.join(map(str, cells))} |"


def _section(procedure: Procedure) -> str:
    kind = "overlay" if procedure.name in OVERLAYS else "graph"
    toml, example = (path.relative_to(ROOT) for path in (procedure.toml, procedure.example))
    return f"""## {procedure.name}

<img src="{os.path.relpath(procedure.picture, PAGE.parent)}" alt="The {kind} {procedure.name}" width="640">

The {kind} is [{toml}](../{toml}); `graphtrain run {example}` runs [the example](../{example}).
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for each in all_procedures().values():
        draw(each, each.picture)
