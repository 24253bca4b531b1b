"""What `make docs` puts into a page in place of a line ``<!-- generated: NAME -->``: reference that the source knows.

The page in git has the introduction and the line, and a link to it works in the repository too. A function returns
Markdown as if it stood on a page in `docs/`: its links are those of the repository.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import networkx
from click.testing import CliRunner

import graphtrain
from graphtrain.adapters._training_arguments import INSTEAD, NO_EFFECT
from graphtrain.adapters.lightning_flags import EQUIVALENTS, REFUSED_CALLBACKS, REFUSED_FLAGS
from graphtrain.checks.codes import CODES
from graphtrain.checks.codes import FAMILIES as FAMILIES_OF_CODES
from graphtrain.command.cli import COMMANDS, app
from graphtrain.graph.registry import find_kind, known_kinds
from graphtrain.kind import Kind
from graphtrain.kind.declaration import FAMILIES
from graphtrain.viz.render import draw
from tools.site.gallery import embedded

EXAMPLE_REPORT = "images/example-report.html"
"""Where the site has the report of an example, which is no page."""

_GALLERY = "graphtrain.graphs.gallery."
_TITLES = {
    "data": "Batches and data",
    "compute": "Forward and backward",
    "gradient": "Windows and gradients",
    "update": "Steps, schedules and weights",
    "choice": "Choices",
    "bookkeeping": "Epochs, metrics and the end",
    "saving": "Checkpoints and predictions",
    "ranks": "Several processes",
}


def kinds() -> str:
    """Every shipped kind with its docstring, by the family in which it is drawn; those of the gallery come last."""
    found = [kind for name in known_kinds() if (kind := find_kind(name)) is not None]
    shipped = [kind for kind in found if kind.implementation.__module__.startswith("graphtrain.nodes.")]
    of_gallery = [kind for kind in found if kind.implementation.__module__.startswith(_GALLERY)]
    by_family = groupby(sorted(shipped, key=_family), key=_family)
    sections = [(_TITLES.get(FAMILIES[family], FAMILIES[family]), [*each]) for family, each in by_family]
    return "\n\n".join(f"## {title}\n\n{_docstrings(each)}" for title, each in [*sections, ("The gallery", of_gallery)])


def _family(kind: Kind) -> int:
    return FAMILIES.index(kind.family)


def _docstrings(kinds: list[Kind]) -> str:
    each = [(kind.name, kind.implementation) for kind in kinds]
    return "\n\n".join(f"### {name}\n\n::: {made.__module__}.{made.__qualname__}" for name, made in each)


def commands() -> str:
    """Every command with its help, as `graphtrain COMMAND --help` prints it."""
    return "\n\n".join(f"### graphtrain {name}\n\n```text\n{_help(name)}```" for name in COMMANDS)


def _help(name: str) -> str:
    return CliRunner().invoke(app, [name, "--help"], prog_name="graphtrain", terminal_width=110).output


def checks() -> str:
    """Every code of a problem, one line each, in a table for each family."""
    tables = []
    for family, title in FAMILIES_OF_CODES.items():
        rows = [[name, *code] for name, code in CODES.items() if name.startswith(family)]
        table = _table(["code", "what is found", "without the check", "what to do"], rows)
        tables.append(f"## {family}xx: {title}\n\n{table}")
    return _with_links("\n\n".join(tables))


def lightning_names() -> str:
    """What the adapter for Lightning refuses: arguments, callbacks, attributes of `self.trainer`."""
    arguments = [[f"`{name}`", _shown(values), instead] for name, (values, instead) in REFUSED_FLAGS.items()]
    tables = [_table(["argument of the Trainer", "an error unless it is", "instead"], arguments)]
    for title, refused in (("callback", REFUSED_CALLBACKS), ("attribute of `self.trainer`", EQUIVALENTS)):
        tables.append(_table([title, "instead"], [[f"`{name}`", instead] for name, instead in refused.items()]))
    return "\n\n".join(tables)


def _shown(values: tuple[Any, ...]) -> str:
    return ", ".join(f"`{value!r}`" for value in values)


def trainer_names() -> str:
    """What the adapter for Transformers refuses in TrainingArguments, and what has no effect."""
    refused = [[_quoted(names), _with_links(instead)] for instead, names in INSTEAD.items()]
    ignored = f"These have no effect: {_quoted(sorted(NO_EFFECT))}."
    return f"{_table(['an error, if it is set', 'instead'], refused)}\n\n{ignored}"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(columns: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _with_links(text: str) -> str:
    """The text with a link in place of the name of a page."""
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


def rooms() -> str:
    """A picture of the rooms, made from what their docstrings say of the imports: an arrow leads to what is used.

    An arrow is left out where others lead to the same room on the way.
    """
    packages = sorted(path.parent.name for path in Path(graphtrain.__file__).parent.glob("*/__init__.py"))
    texts = {name: import_module(f"graphtrain.{name}").__doc__ or "" for name in packages}
    stands_on = {name: re.search(r"^Stands on: ([^.]+)\.", text, re.MULTILINE) for name, text in texts.items()}
    uses = networkx.DiGraph({name: re.split(r",\s+", match[1]) if match else [] for name, match in stands_on.items()})
    arrows = "".join(f'"{source}" -> "{target}";' for source, target in networkx.transitive_reduction(uses).edges)
    names = "".join(f'"{name}" [tooltip="{texts[name].partition(".")[0]}"];' for name in packages)
    look = 'node [shape=box, style="rounded,filled", fillcolor="#eef2fb", color="#5b7bb4", fontname=Helvetica]'
    dot = f'digraph {{ {look}; edge [color="#5b7bb4", arrowsize=0.6]; ranksep=0.3; {names} {arrows} }}'
    return embedded(draw(dot, "svg"), "The rooms, and what each stands on")


def example_report(path: Path) -> None:
    """Write the report of a run: the digits example, stopped at step 60 and resumed; this takes a few seconds."""
    script = Path(__file__).parents[2] / "examples" / "digits.py"
    with TemporaryDirectory() as folder, contextlib.chdir(folder):  # paths in the report are relative
        shutil.copy(script, "digits.py")
        run = ["run", "digits.py", "finish.after=5 epochs", "--run-dir", "runs/digits", "--quiet"]
        for words in ([*run, "--until", "60 steps"], run, ["report", "runs/digits", "-o", "report.html"]):
            result = CliRunner().invoke(app, words, catch_exceptions=False)
            assert result.exit_code == 0, result.output
        shutil.move("report.html", path)


def _of(module: str, function: str) -> Callable[[], str]:
    """A function of another module, which is imported when a page asks for it."""
    return lambda: str(getattr(import_module(f"tools.site.{module}"), function)())


GENERATED: dict[str, Callable[[], str]] = {
    "kinds": kinds,
    "checks": checks,
    "commands": commands,
    "lightning-names": lightning_names,
    "trainer-names": trainer_names,
    "rooms": rooms,
    "gallery": _of("gallery", "gallery"),
    "set-ups": _of("set_ups", "set_ups"),
    "example-report": lambda: f'<a href="{EXAMPLE_REPORT}">An example</a>: digits, stopped at step 60 and resumed.',
}
"""NAME -> what returns the Markdown."""
