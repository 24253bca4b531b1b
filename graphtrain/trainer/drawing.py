"""Pictures of the graph of a run, for a notebook and for loggers.

Drawing can fail in any way: no layout program, one that hangs, a graph that nobody thought of. A run is worth more than
its picture, so that every error counts as "no picture".
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

from graphtrain.graph import Graph


def html_of(graph: Graph, counts: Mapping[str, int] | None, position: str | None, lines: Iterable[str]) -> str:
    """A run as HTML: the picture of its graph and lines of text below; the lines alone where it cannot be drawn.

    Arguments:
        graph: the procedure.
        counts: path of a node -> how often it ran. None: not shown.
        position: path of the node that runs next, which is marked. None: not marked.
        lines: plain text, one line each; escaped here.

    >>> html_of(Graph.load("evaluate"), None, None, ["loss < 1"]).endswith("<pre>loss &lt; 1</pre></div>")
    True
    """
    try:
        from graphtrain.viz.render import svg

        # A notebook may be narrow.
        picture = svg(graph, counts, position).replace("<svg ", '<svg style="max-width: 100%; height: auto" ', 1)
    except Exception:
        picture = ""
    text = html.escape("\n".join(lines))
    return f"<div>{picture}<pre>{text}</pre></div>"


def picture_of(graph: Graph, format: str) -> bytes | None:
    """The picture of a graph as the content of a file, or None where it cannot be drawn.

    Arguments:
        graph: the procedure.
        format: ``"svg"`` or ``"png"``.

    >>> picture_of(Graph.load("evaluate"), "png")[1:4], picture_of(Graph.load("evaluate"), "cave painting")
    (b'PNG', None)
    """
    try:
        from graphtrain.viz.render import drawing

        return drawing(graph, format) if format in ("svg", "png") else None
    except Exception:
        return None
