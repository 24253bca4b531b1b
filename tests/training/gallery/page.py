"""The page of the gallery, made of the files that it shows: `python -m tests.training.gallery.page` writes it."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

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


# What the example of each reaches with three seeds, and what it is compared with: untrained, or trained otherwise.
RESULTS = {
    "active_learning": ("val/accuracy", 0.94, 0.92),
    "distill": ("val/accuracy", 0.89, 0.71),
    "ema": ("val/accuracy", 0.93, 0.84),
    "gan": ("val/distance", 0.02, 1.28),
    "kfold": ("out_of_fold/accuracy", 0.95, 0.63),
    "lbfgs": ("val/loss", 1e-5, 1.7e-3),
    "maml": ("val/loss", 1.1, 2.3),
    "manual": ("val/accuracy", 0.95, 0.1),
    "ppo": ("rollout/return", 300, 22),
    "rollback": ("val/accuracy", 0.92, 0.17),
    "sam": ("val/accuracy", 0.89, 0.83),
    "swa": ("swa/accuracy", 0.94, 0.9),
    "tbptt": ("val/loss", 1.9, 2.36),
    "unfreeze": ("val/accuracy", 0.84, 0.76),
    "val_guided": ("val/accuracy", 0.86, 0.8),
    "yielding": ("val/accuracy", 0.88, 0.1),
}


def page() -> str:
    """The text of the page."""
    procedures = all_procedures()
    rows = [
        "| | what it does | result of the example | baseline |",
        "| --- | --- | --- | --- |",
        *(_row(procedure) for procedure in procedures.values()),
    ]
    return _BEGINNING + "\n".join(rows) + "\n\n" + "\n".join(_section(each) for each in procedures.values())


def command(procedure: Procedure) -> str:
    """The command line that runs the example: the first one in its docstring."""
    text = ast.get_docstring(ast.parse(procedure.example.read_text(encoding="utf-8"))) or ""
    return " ".join(re.findall(r"^    (graphtrain run .*)$", text, re.MULTILINE)[0].split())


def draw(procedure: Procedure, path: Path) -> Path:
    """What it changes of `fit`; the graph alone where it shares no node with `fit`."""
    fit = Graph.load("fit")
    graph = fit.overlay(procedure.name) if procedure.name in OVERLAYS else Graph.load(procedure.name)
    return (fit.diff(graph) if "decide" in graph.nodes else graph).render(path)


def words_of(picture: Path) -> list[str]:
    """Its texts: the layout may differ between versions of graphviz."""
    return sorted(re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text(encoding="utf-8")))


def _row(procedure: Procedure) -> str:
    metric, level, baseline = RESULTS[procedure.name]
    sign = "≥" if level > baseline else "≤"
    cells = (
        f"[{procedure.name}](#{procedure.name})",
        procedure.toml.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip(),
        f"`{metric}` {sign} {level}",
        baseline,
    )
    return f"| {' | '.join(map(str, cells))} |"


def _section(procedure: Procedure) -> str:
    kind = "overlay" if procedure.name in OVERLAYS else "graph"
    toml, example = (path.relative_to(ROOT) for path in (procedure.toml, procedure.example))
    return f"""## {procedure.name}

<img src="{os.path.relpath(procedure.picture, PAGE.parent)}" alt="The {kind} {procedure.name}" width="640">

The {kind} is [{toml}](../{toml}); `{command(procedure)}` runs [the example](../{example}).
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for each in all_procedures().values():
        draw(each, each.picture)
