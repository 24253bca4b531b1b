"""A graph to a picture in a file, or to an SVG for a notebook."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.graph.elements import GraphData
from graphtrain.graph.graph import PICTURE_SUFFIXES
from graphtrain.storage.files import write_output
from graphtrain.viz.dot import to_dot
from graphtrain.viz.mermaid import to_mermaid
from graphtrain.viz.picture import Picture, picture
from graphtrain.viz.theme import adaptive
from graphtrain.viz.wording import one_line

if TYPE_CHECKING:
    from graphtrain.graph.difference import Difference

TIMEOUT_SECONDS = 60.0

# A stand-in for the program ``dot``: DOT on standard input, a drawing on standard output. It runs in a separate process
# because the libraries write errors directly to standard error, and so that nothing in a drawing can end a run.
_PYGRAPHVIZ = """\
import sys
from pygraphviz import AGraph
drawing = AGraph(string=sys.stdin.buffer.read().decode()).draw(format=sys.argv[1], prog="dot")
sys.stdout.buffer.write(drawing)
"""


def render(
    graph: GraphData | Difference,
    path: str | Path,
    counts: Mapping[str, int] | None = None,
    position: str | None = None,
    bypassed: Collection[str] = (),
) -> Path:
    """Draw a graph into a file, in the format that its suffix names; an existing file is overwritten.

    Arguments, results and errors are those of `Graph.render`; in addition:

    Arguments:
        graph: the graph, which may have problems; or a difference, of which both graphs are drawn in one picture.
        bypassed: the paths of nodes that a run bypasses, which are drawn pale. Default: none.

    >>> from graphtrain import Graph
    >>> render(Graph.load("fit"), "fit.jpeg")
    Traceback (most recent call last):
        ...
    graphtrain.errors.UsageError: fit.jpeg: unknown format of a picture `.jpeg`
      hint: use a file name that ends in .svg, .png, .pdf, .dot, .mmd
    """
    path = Path(path)
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise UsageError(
            f"{path}: unknown format of a picture `{path.suffix}`",
            f"use a file name that ends in {', '.join(PICTURE_SUFFIXES)}"
            + ("; `graph.save` writes TOML" if path.suffix == ".toml" else ""),
        )
    shown = {"counts": counts, "position": position, "bypassed": bypassed}
    content = drawing(graph, path.suffix.lower().removeprefix("."), **shown)
    try:
        write_output(path, content)
    except OSError as error:
        raise UsageError(f"{path}: the picture cannot be written: {error.strerror or error}") from error
    return path


def svg(graph: GraphData | Difference, counts: Mapping[str, int] | None = None, position: str | None = None) -> str:
    """The picture of a graph as an SVG element for a notebook or a page; arguments as in `render`.

    It has its own background, since a notebook may be light on a dark system.

    >>> from graphtrain import Graph
    >>> svg(Graph.load("evaluate")).startswith("<svg")
    True
    """
    text = draw(to_dot(_picture(graph, counts=counts, position=position)), "svg").decode()
    return adaptive(text[text.index("<svg") :], panel=True)


def drawing(graph: GraphData | Difference, format: str, **shown: Any) -> bytes:
    """The content of a file with the picture of a graph; `shown` as in `render`, whose errors it has."""
    drawn = _picture(graph, **shown)
    if format == "mmd":
        return to_mermaid(drawn).encode()
    if format == "dot":
        return to_dot(drawn).encode()
    if format == "svg":
        return adaptive(draw(to_dot(drawn), "svg").decode()).encode()
    return draw(to_dot(drawn), format)


def _picture(graph: GraphData | Difference, **shown: Any) -> Picture:
    if isinstance(graph, GraphData):
        return picture(graph, **shown)
    # Imported with the first difference: 7 ms of the 260 that `graphtrain render fit` takes of the processor.
    from graphtrain.viz.difference import difference_picture

    return difference_picture(graph)


# ---- DOT text laid out and drawn: by a system ``dot`` where there is one, otherwise by pygraphviz


class RenderError(GraphtrainError, RuntimeError):
    """A picture that could not be drawn; it never stops a run."""


def draw(dot_text: str, format: str) -> bytes:
    """The drawing of a DOT text.

    Arguments:
        dot_text: what `to_dot` wrote.
        format: ``"svg"``, ``"png"`` or ``"pdf"``.

    Raises:
        RenderError: neither a system ``dot`` nor pygraphviz could draw it; the message has the reason of each.

    >>> draw("digraph { a -> b }", "svg")[:5]
    b'<?xml'
    """
    reasons = []
    for name, command in _programs(format):
        try:
            return _output(command, dot_text.encode())
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{name}: {_reason(error)}")
    raise RenderError(
        f"the picture could not be drawn as {format} ({'; '.join(reasons) or 'no program to draw it'})",
        "install Graphviz (https://graphviz.org/download) or pygraphviz; .dot and .mmd are written without them",
    )


def _programs(format: str) -> Iterator[tuple[str, list[str]]]:
    dot = shutil.which("dot")
    if dot is not None:
        yield dot, [dot, f"-T{format}"]
    if sys.executable:
        yield "pygraphviz", [sys.executable, "-P", "-c", _PYGRAPHVIZ, format]  # -P: nothing of the current folder


def _output(command: list[str], text: bytes) -> bytes:
    # S603: the command is `dot` or this interpreter, with a format of ours; a stranger's text arrives as input only.
    done = subprocess.run(command, input=text, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)  # noqa: S603
    if not done.stdout:
        raise subprocess.SubprocessError("it drew nothing")
    return done.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        last_line = one_line(error.stderr.decode(errors="replace").strip().rpartition("\n")[2], 200)
        return last_line or f"exit status {error.returncode}"
    return one_line(str(error), 200)
