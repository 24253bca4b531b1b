"""A graph to a picture in a file, or to an SVG for a notebook."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.graph.difference import Difference
from graphtrain.graph.elements import GraphData
from graphtrain.graph.graph import PICTURE_SUFFIXES
from graphtrain.printable import shown
from graphtrain.storage.files import write_output
from graphtrain.viz.describe import Description, describe
from graphtrain.viz.difference import describe_difference
from graphtrain.viz.dot import to_dot
from graphtrain.viz.mermaid import to_mermaid
from graphtrain.viz.theme import style

# A stand-in for the program ``dot``: DOT on standard input, a drawing on standard output. It runs in a separate process
# because the libraries write errors directly to standard error, and so that nothing in a drawing can end a run.
_PYGRAPHVIZ = """\
import sys, pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog="dot"))
"""


class RenderError(GraphtrainError, RuntimeError):
    """A picture that could not be drawn; it never stops a run."""


def render(
    graph: GraphData | Difference,
    path: str | Path,
    counts: Mapping[str, int] | None = None,
    position: str | None = None,
    bypassed: Collection[str] = (),
) -> Path:
    """Draw a graph, or the difference of two, into a file; arguments and errors are those of `Graph.render`.

    Arguments:
        bypassed: the paths of nodes that a run bypasses, which are drawn pale. Default: none.
    """
    path = Path(path)
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        hint = f"use a name that ends in {', '.join(PICTURE_SUFFIXES)}"
        hint += "; `graph.save` writes TOML" if path.suffix == ".toml" else ""
        raise UsageError(f"{path}: unknown picture format `{path.suffix}`", hint)
    drawn, format = _described(graph, counts, position, bypassed), path.suffix.lower()[1:]
    if format == "svg":
        content = f'<?xml version="1.0" encoding="UTF-8"?>\n{element(to_dot(drawn), style())}'.encode()
    elif format in ("dot", "mmd"):
        content = (to_dot if format == "dot" else to_mermaid)(drawn).encode()
    else:
        content = draw(to_dot(drawn), format)
    try:
        write_output(path, content)
    except OSError as error:
        raise UsageError(f"{path}: the picture cannot be written: {error.strerror or error}") from error
    return path


def svg(graph: GraphData | Difference, *shown: Any) -> str:
    """The picture of a graph as an SVG element for a notebook; arguments as in `render`."""
    return element(to_dot(_described(graph, *shown)), style())


def element(dot_text: str, css: str = "") -> str:
    """The SVG element that a DOT text draws, in light colours; with `style` it follows the reader's scheme."""
    tag, _, rest = draw(dot_text, "svg").decode().partition("<svg")[2].partition(">")
    return f'<svg class="graphtrain"{tag}>{css and f"<style>{css}</style>"}{rest}'


def _described(graph: GraphData | Difference, *shown: Any) -> Description:
    return describe(graph, *shown) if isinstance(graph, GraphData) else describe_difference(graph)


def draw(dot_text: str, format: str) -> bytes:
    """The drawing of a DOT text: by a system ``dot`` where there is one, otherwise by pygraphviz.

    Raises:
        RenderError: neither could draw it; the message has the reason of each.
    """
    programs = [[sys.executable, "-P", "-c", _PYGRAPHVIZ, format]]  # -P: nothing of the current folder is imported
    if (dot := shutil.which("dot")) is not None:
        programs.insert(0, [dot, f"-T{format}"])
    reasons = []
    for program in programs:
        try:
            # S603: the command is `dot` or this interpreter; a stranger's text arrives as input only.
            done = subprocess.run(program, input=dot_text.encode(), capture_output=True, timeout=60)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{program[0]}: {shown(error)}")
            continue
        if done.returncode == 0 and done.stdout:
            return done.stdout
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        reasons.append(f"{program[0]}: {shown(last_line or f'exit status {done.returncode}')}")
    raise RenderError(
        f"the picture could not be drawn as {format} ({'; '.join(reasons)})",
        "install Graphviz (https://graphviz.org/download) or pygraphviz; .dot and .mmd are written without them",
    )
