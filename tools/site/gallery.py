"""The list of the page `gallery.md`: each procedure with its picture, its text and the command that runs its example.

It is made from the files of the procedures when the site is built.
"""

from __future__ import annotations

import ast
import base64
import re
import tempfile
from pathlib import Path

from graphtrain import Graph

ROOT = Path(__file__).resolve().parents[2]

# A metric, what the example reaches with three seeds, and what it is compared with: untrained, or trained otherwise.
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


def gallery() -> str:
    """A table of the procedures, and a section for each."""
    header = "| | what it does | result of the example | baseline |\n| --- | --- | --- | --- |\n"
    return header + "".join(map(_row, RESULTS)) + "\n" + "\n".join(map(_section, RESULTS))


def command(name: str) -> str:
    """The command that runs the example of a procedure: the first one in its docstring.

    >>> command("gan")
    "graphtrain run graphs/gallery/gan/gan.py finish.after='20 epochs'"
    """
    return " ".join(re.findall(r"^    (graphtrain run .*)$", _docstring(name), re.MULTILINE)[0].split())


def draw(name: str, path: Path) -> Path:
    """Draw a procedure as what it changes of `fit`, or alone if it shares no node with `fit`; returns the path."""
    fit = Graph.load("fit")
    graph = fit.overlay(name) if _is_overlay(name) else Graph.load(name)
    return (fit.diff(graph) if "decide" in graph.nodes else graph).render(path)


def embedded(svg: bytes, text: str) -> str:
    """A picture in a page, with a text for those who do not see it."""
    content = base64.b64encode(svg).decode()
    return f'<img src="data:image/svg+xml;base64,{content}" alt="{text}" width="640">'


def _row(name: str) -> str:
    metric, level, baseline = RESULTS[name]
    sign = "≥" if level > baseline else "≤"
    return f"| [{name}](#{name}) | {_summary(name)} | `{metric}` {sign} {level} | {baseline} |\n"


def _section(name: str) -> str:
    kind = "overlay" if _is_overlay(name) else "graph"
    toml, example = (path.relative_to(ROOT).as_posix() for path in (_toml(name), _example(name)))
    with tempfile.TemporaryDirectory() as folder:
        picture = embedded(draw(name, Path(folder) / "picture.svg").read_bytes(), f"The {kind} {name}")
    return f"""### {name}

{_text(name)}

{picture}

The {kind} is [{toml}](../{toml}). This command runs [its example](../{example}):

```bash
{command(name)}
```
"""


def _summary(name: str) -> str:
    """The comment at the beginning of the file of the graph or overlay."""
    return _toml(name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


def _text(name: str) -> str:
    """The docstring of the example, without its commands."""
    paragraphs = re.split(r"\n\s*\n", _docstring(name))
    return "\n\n".join(text for text in paragraphs if not text.startswith("    "))


def _docstring(name: str) -> str:
    return ast.get_docstring(ast.parse(_example(name).read_text(encoding="utf-8"))) or ""


def _is_overlay(name: str) -> bool:
    return re.search(r"^(extends|\[?nodes)\b", _toml(name).read_text(encoding="utf-8"), re.MULTILINE) is None


def _toml(name: str) -> Path:
    (path,) = (ROOT / "graphs").rglob(f"{name}.toml")
    return path


def _example(name: str) -> Path:
    (path,) = (file for folder in ("graphs", "examples") for file in (ROOT / folder).rglob(f"{name}.py"))
    return path
