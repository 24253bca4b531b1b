"""A graph to a picture in a file, or to an SVG for a notebook."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.graph import PICTURE_SUFFIXES
from graphtrain.viz.dot import to_dot
from graphtrain.viz.layout import draw
from graphtrain.viz.mermaid import to_mermaid
from graphtrain.viz.picture import Picture, picture
from graphtrain.viz.theme import adaptive

if TYPE_CHECKING:
    from graphtrain.graph.difference import Difference


def render(
    graph: Graph | Difference,
    path: str | Path,
    counts: Mapping[str, int] | None = None,
    position: str | None = None,
    seconds: Mapping[str, float] | None = None,
    bypassed: Collection[str] = (),
    *,
    guards: bool = False,
) -> Path:
    """Draw a graph into a file, in the format that its suffix names; an existing file is overwritten.

    Arguments, results and errors are those of `Graph.render`; besides:

    Arguments:
        graph: what to draw; it may have problems. Of a difference both graphs are drawn, in one picture.
        bypassed: the paths of nodes that a run bypasses, which are drawn pale. Default: none.

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
    shown = {"counts": counts, "position": position, "seconds": seconds, "bypassed": bypassed, "guards": guards}
    content = drawing(graph, path.suffix.lower().removeprefix("."), **shown)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path}: the picture cannot be written: {error.strerror or error}") from error
    return path


def svg(graph: Graph | Difference, counts: Mapping[str, int] | None = None, position: str | None = None) -> str:
    """The picture of a graph as an SVG element for a notebook or a page; arguments as in `render`.

    It has a background of its own, for a notebook may be light where the system is dark.

    >>> svg(Graph.load("evaluate")).startswith("<svg")
    True
    """
    text = draw(to_dot(_picture(graph, counts=counts, position=position)), "svg").decode()
    return adaptive(text[text.index("<svg") :], panel=True)


def drawing(graph: Graph | Difference, format: str, **shown: Any) -> bytes:
    """The content of a file with the picture of a graph; `shown` as in `render`, whose errors it has."""
    drawn = _picture(graph, **shown)
    if format == "mmd":
        return to_mermaid(drawn).encode()
    if format == "dot":
        return to_dot(drawn).encode()
    if format == "svg":
        return adaptive(draw(to_dot(drawn), "svg").decode()).encode()
    return draw(to_dot(drawn), "png" if format == "png" else "pdf")


def _picture(graph: Graph | Difference, **shown: Any) -> Picture:
    if isinstance(graph, Graph):
        return picture(graph, **shown)
    # Imported with the first difference: 7 ms of the 260 that `graphtrain render fit` takes of the processor.
    from graphtrain.viz.difference import difference_picture

    return difference_picture(graph)
