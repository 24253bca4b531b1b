"""The procedure as users have it: a graph with its checks, its pictures, and those that were saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

from graphtrain.graph import EditableGraph
from graphtrain.graph.difference import Difference
from graphtrain.graph.elements import GraphData, Problem, Problems
from graphtrain.graph.registry import find_graph

# What loads, checks and draws a graph is imported where it is called: a graph that is read costs none of it.


class Drawn:
    """What a notebook shows as a picture: a graph, or two of them."""

    def _repr_svg_(self) -> str | None:
        try:
            from graphtrain.viz.render import svg

            return svg(self)  # type: ignore[arg-type]
        except Exception:  # a notebook cell must never fail because of its picture
            return None


@final
@dataclass(frozen=True, repr=False, eq=False)
class Graph(Drawn, EditableGraph):
    """An immutable training procedure; every edit returns a new graph. ``print(graph)`` shows it, `render` draws it.

    Arguments:
        name: its name in pictures and messages.
        start: the node that runs first.
        nodes: by name, in the order of the text.
        edges: source -> its edges in order of priority: the first edge whose guard is true is taken.
        guards: name -> expression.
        units: the clock: unit -> the ``"node.field"`` that counts it.
        outputs: slots that leave the graph when it is the body of a node. One followed by `?` may be absent; its
            readers have a default.
        optional: resources without which a node with this graph as its body is bypassed.
        optimizer: the resource or slot bound to the slot `optimizer` of nodes here and in nested graphs that do not
            bind it themselves. Default: that of the enclosing graph, or the resource `optimizer`.
        allow: codes of intended problems: of warnings, and of all checks of paths (G3xx and above).
        source: the file it was read from; edits keep it. Default: none.
        layers: its overlays; edits keep them. Default: none.

    >>> graph = Graph.load("fit").set("accumulate", every=4)
    >>> graph, graph.nodes["accumulate"]
    (<Graph fit: 15 nodes, start decide>, <Node accumulate: every = 4>)
    >>> [str(edge) for edge in graph.edges["accumulate"]]
    ['exchange if accumulation_reached', 'decide']
    >>> graph.nodes["accumulate"].parameters["every"]
    4
    """

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Read a graph: the name of a shipped or installed one, or the path of a TOML file.

        The path of a run directory or of a checkpoint, ``RUN/best`` and ``RUN/newest`` among them, reads the graph
        saved there; to run it, the caller has to declare its kinds.

        Raises:
            GraphError: the text is not a graph; `problems` has every reason. Kinds and parameters are left to `check`.
            UsageError: there is no such graph or file.
            CheckpointError: the checkpoint is damaged.

        >>> Graph.load("fit").start
        'decide'
        """
        if isinstance(source, str | Path) and Path(source).suffix != ".toml" and find_graph(str(source)) is None:
            from graphtrain.storage.named import holds_a_graph, saved_graph

            if holds_a_graph(Path(source)):
                return cls.of(saved_graph(source))
        return super().load(source)

    def check(self, *, ranks: bool = False) -> list[Problem]:
        """All problems of this graph, which a prompt shows as lines; an empty list if it has none. Imports the kinds.

        Arguments:
            ranks: True for a run of several ranks, which has further checks. Default: False, for one process.

        >>> [problem.code for problem in Graph.load("fit").set("clip", max_norm="fast").check()]
        ['G104']
        """
        from graphtrain.checks import check_graph

        return Problems(check_graph(self, ranks=ranks))

    def diff(self, other: GraphData) -> DrawnDifference:
        difference = super().diff(other)
        return DrawnDifference(difference.before, difference.after, difference.changes)

    diff.__doc__ = EditableGraph.diff.__doc__

    def render(
        self,
        path: str | Path,
        *,
        counts: Mapping[str, int] | None = None,
        position: str | None = None,
    ) -> Path:
        """Draw the graph into a file, with or without problems; an existing file is overwritten.

        Arguments:
            path: ends in ``.svg``, ``.png``, ``.pdf``, ``.dot`` (Graphviz) or ``.mmd`` (Mermaid).
            counts: path of a node -> how often it ran, for a heat picture. Default: no heat.
            position: path of the node that runs next, to be marked. Default: none.

        Returns:
            The path of the file.

        Raises:
            UsageError: an unknown suffix, or a file that cannot be written.
            RenderError: the picture cannot be laid out here; ``.dot`` and ``.mmd`` always can.

        >>> Graph.load("fit").render("fit.jpeg")
        Traceback (most recent call last):
            ...
        graphtrain.errors.UsageError: fit.jpeg: unknown format of a picture `.jpeg`
          hint: use a file name that ends in .svg, .png, .pdf, .dot, .mmd
        """
        from graphtrain.viz.render import render

        return render(self, path, counts, position)


@final
@dataclass(frozen=True, repr=False)
class DrawnDifference(Drawn, Difference):
    """The difference of two graphs, which draws itself."""

    def render(self, path: str | Path) -> Path:
        """Draw both graphs into a file, in one picture; with the formats and errors of `Graph.render`."""
        from graphtrain.viz.render import render

        return render(self, path)
