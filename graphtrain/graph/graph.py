"""A training procedure as a value: nodes, guarded edges, named guards, a clock, a start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from graphtrain.errors import GraphError
from graphtrain.graph import canonical, read_toml, write_toml
from graphtrain.graph.difference import Difference
from graphtrain.graph.dry_run import dry_run
from graphtrain.graph.edit import Editable
from graphtrain.graph.elements import Drawable, Edge, Node, Place, frozen
from graphtrain.graph.layers import Layers
from graphtrain.graph.readable import readable_text
from graphtrain.graph.registry import find_graph
from graphtrain.names import quoted

if TYPE_CHECKING:
    from graphtrain.graph.problem import Problem


@final
@dataclass(frozen=True)
class Graph(Editable, Drawable):
    """An immutable training procedure; every edit returns a new graph. ``print(graph)`` shows it, `render` draws it.

    Arguments:
        name: its name in pictures and messages.
        start: the node that runs first.
        nodes: by name, in the order of the text.
        edges: source -> its edges in order of priority: the first edge whose guard is true is taken.
        guards: name -> expression.
        units: the clock: unit -> the ``"node.field"`` that counts it.
        outputs: slots that leave the graph when it is the body of a node; of one with a `?` behind it there may be
            nothing, and its readers have a default.
        optional: resources without which a node with this graph as its body is bypassed.
        optimizer: what the slot `optimizer` means to nodes here, and in graphs inside, that do not bind it themselves:
            the name of a resource or a slot. Default: that of the graph around, or the resource `optimizer`.
        allow: codes of intended problems: of warnings, and of all checks of paths (G3xx and above).
        source: the file that it was read from; edits keep it. Default: none.
        layers: what overlays have added to it; edits keep it. Default: none have.

    >>> graph = Graph.load("fit").set("accumulate", every=4)
    >>> graph, graph.nodes["accumulate"]
    (<Graph fit: 15 nodes, start decide>, <Node accumulate: every = 4>)
    >>> [str(edge) for edge in graph.edges["accumulate"]]
    ['exchange if accumulation_reached', 'decide']
    >>> graph.nodes["accumulate"].parameters["every"]
    4
    """

    name: str
    start: str
    nodes: Mapping[str, Node]
    edges: Mapping[str, tuple[Edge, ...]]
    guards: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    optimizer: str = ""
    places: Mapping[str, Place] = field(default_factory=dict, compare=False, repr=False)
    source: str = field(default="", compare=False, repr=False)
    layers: Layers = field(default_factory=Layers, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("nodes", "edges", "guards", "units", "places"):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    def __hash__(self) -> int:
        return hash((self.name, self.start, frozenset(self.nodes)))

    def __deepcopy__(self, memory: object) -> Graph:
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph.from_json, (self.to_json(),)

    # What stands above graphs (the checks, checkpoints, pictures) is imported where it is called.

    @classmethod
    def load(cls, source: str | Path, *, contained: bool = False) -> Graph:
        """Read a graph: the name of a shipped or installed one, or the path of a TOML file.

        The path of a run directory or of a checkpoint, ``RUN/best`` and ``RUN/newest`` among them, reads the graph that
        was saved there; to run it, the caller has to declare its kinds.

        Arguments:
            contained: True refuses a graph that names files outside of its own folder (of the current folder where it
                has a name), links that lead out of it included: for services that read graphs of strangers. Default: it
                may name any file by a relative path.

        Raises:
            GraphError: the text is not a graph; `problems` has every reason. Kinds and parameters are left to `check`.
            UsageError: there is no such graph or file, it has more than 10,000 nodes, or it is not contained.
            CheckpointError: the checkpoint is damaged.

        >>> Graph.load("fit").start
        'decide'
        """
        may_be_saved = os.path.isdir(source) or os.path.basename(source) in ("best", "newest")
        if may_be_saved and find_graph(str(source)) is None:
            from graphtrain.storage.saved_graph import holds_a_graph, saved_graph

            if holds_a_graph(Path(source)):
                return saved_graph(source, contained=contained)
        draft = read_toml.read_graph(cls, source, contained=contained)
        if draft.problems:
            raise GraphError(draft.problems, f"graph `{source}`")
        return draft.graph

    @classmethod
    def loads(cls, text: str, *, name: str = "text") -> Graph:
        """Read a graph from TOML text; `name` stands for the file in messages.

        >>> text = Graph.load("fit").to_toml()
        >>> Graph.loads(text) == Graph.load("fit")
        True
        """
        draft = read_toml.read_text(cls, text, name)
        if draft.problems:
            raise GraphError(draft.problems, f"graph `{name}`")
        return draft.graph

    def overlay(self, *overlays: str | Path) -> Graph:
        """Add overlays, lists of edits for any graph: the names of shipped or installed ones, or paths of TOML files.

        In whatever order they are named, they add the same; what several put at one place stands in that order. Their
        parameters are set as any. An overlay is for the outermost graph that has the nodes which it names: of `kfold`,
        the `fit` inside of it.

        Raises:
            UsageError: there is no such overlay.
            GraphError: it is not an overlay, it does not fit this graph, or two do not compose.

        >>> graph = Graph.load("fit").overlay("ema", "carry").set("ema", decay=0.99)
        >>> [str(edge) for edge in graph.edges["step"]], graph.guards["window_cut"], graph.layers.names
        (['ema'], 'ending', ('ema', 'carry'))
        """
        draft = read_toml.read_overlays(self, overlays)
        if draft.problems:
            raise GraphError(draft.problems, f"graph `{self.name}` with {quoted(map(str, overlays))}")
        return draft.graph

    def save(self, path: str | Path) -> None:
        """Write TOML that loads back equal; `render` draws a picture.

        Raises:
            UsageError: the file exists or cannot be written, or its name is that of a picture.
        """
        write_toml.save_graph(self, path)

    def to_toml(self) -> str:
        """The text that `save` writes."""
        return write_toml.graph_text(self)

    def to_json(self) -> str:
        """The canonical JSON: the same text for equal graphs, with nested graphs in full."""
        return canonical.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """The graph of a canonical JSON, which is what a checkpoint stores."""
        return read_toml.from_json(cls, text)

    @property
    def structural_hash(self) -> str:
        """A hash (SHA-256, hexadecimal) of what the graph does; without file names, comments and node order."""
        return canonical.structural_hash(self)

    def diff(self, other: Graph) -> Difference:
        """The difference between this graph and another: a value that prints, draws itself, and is false if empty.

        Compares nodes, edges with their order, guards, parameters and the clock, at any depth. A renamed node counts as
        one removed and one added; `renamings` of the value suggests pairs.

        >>> fit = Graph.load("fit")
        >>> print(fit.diff(fit.set("finish", after="20 epochs")))
        ~ finish.after 10 epochs -> 20 epochs
        """
        return Difference.between(self, other)

    def check(self, *, ranks: bool = False) -> list[Problem]:
        """All problems of this graph; an empty list if it has none. Imports the kinds.

        Arguments:
            ranks: True for a run of several ranks, of which more is asked. Default: False, for one process.

        >>> [problem.code for problem in Graph.load("fit").set("clip", max_norm="fast").check()]
        ['G104']
        """
        from graphtrain.checks import check_graph

        return check_graph(self, ranks=ranks)

    def dry_run(self) -> Graph:
        """The graph of a dry run, in which mistakes show early: every node that can be reached is.

        Each epoch has one batch, every trigger is due once, and the run ends after one epoch.

        >>> fit = Graph.load("fit").dry_run()
        >>> fit.nodes["next_batch"], fit.nodes["validate"].body.nodes["next_batch"].parameters["limit"]
        (<Node next_batch: limit = 1>, 1)
        """
        return dry_run(self)

    def render(
        self,
        path: str | Path,
        *,
        counts: Mapping[str, int] | None = None,
        position: str | None = None,
        seconds: Mapping[str, float] | None = None,
        guards: bool = False,
    ) -> Path:
        """Draw the graph into a file, with or without problems; an existing file is overwritten.

        Arguments:
            path: ends in ``.svg``, ``.png``, ``.pdf``, ``.dot`` (Graphviz) or ``.mmd`` (Mermaid).
            counts: path of a node -> how often it ran, for a heat picture. Default: no heat.
            position: path of the node that runs next, to be marked. Default: none.
            seconds: path of a node -> how long its visits took, such as `Trainer.seconds_by_node`, for a heat picture
                of that. Default: none.
            guards: True adds a table with the expressions of the guards below the picture. Default: False.

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
        return self._drawn_into(path, counts=counts, position=position, seconds=seconds, guards=guards)

    @property
    def title(self) -> str:
        """What a person calls it: the file that it was read from, or else its name."""
        return self.source or self.name

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.nodes)} nodes, start {self.start}>"

    def __str__(self) -> str:
        return readable_text(self)
