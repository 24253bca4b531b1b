"""`Graph`, the training procedure with its checks and pictures; and the function `fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from graphtrain.graph import EditableGraph
from graphtrain.graph.calls import checked_call
from graphtrain.graph.difference import Difference
from graphtrain.graph.elements import GraphData, Problem, Problems
from graphtrain.graph.registry import find_graph
from graphtrain.kind.parameter import Precision


class Drawn:
    """A graph, or the difference of two, that draws itself in a notebook and into a file."""

    def _repr_svg_(self) -> str | None:
        with suppress(Exception):  # a notebook cell must never fail because of its picture
            from graphtrain.viz.render import svg

            return svg(self)  # type: ignore[arg-type]
        return None

    def render(self, path: str | Path, *, counts: Mapping[str, int] | None = None, position: str | None = None) -> Path:
        """Draw the graph, or both graphs of a difference, into a file, which is overwritten; returns its path.

        Arguments:
            path: ends in ``.svg``, ``.png``, ``.pdf``, ``.dot`` (Graphviz) or ``.mmd`` (Mermaid).
            counts: path of a node -> how often it ran; nodes of a graph are colored by it. Default: no colors.
            position: path of the node that runs next, which is marked in a graph. Default: none.

        Raises:
            UsageError: the suffix is unknown, or the file cannot be written.
            RenderError: Graphviz and pygraphviz are missing or fail; ``.dot`` and ``.mmd`` need neither.

        >>> Graph.load("fit").render("fit.jpeg")
        Traceback (most recent call last):
            ...
        graphtrain.errors.UsageError: fit.jpeg: unknown picture format `.jpeg`
          hint: use a name that ends in .svg, .png, .pdf, .dot, .mmd
        """
        from graphtrain.viz.render import render

        return render(self, path, counts, position)  # type: ignore[arg-type]


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
        """Every problem of this graph, a line each at a prompt; an empty list if it has none. Imports the kinds.

        Arguments:
            ranks: True checks it for a run of several ranks. Default: False, for one process.

        >>> [problem.code for problem in Graph.load("fit").set("clip", max_norm="fast").check()]
        ['G104']
        """
        from graphtrain.checks import check_graph

        return Problems(check_graph(self, ranks=ranks))

    def diff(self, other: GraphData) -> DrawnDifference:
        return DrawnDifference(**vars(super().diff(other)))

    diff.__doc__ = EditableGraph.diff.__doc__


@final
@dataclass(frozen=True, repr=False)
class DrawnDifference(Drawn, Difference):
    """The difference of two graphs, which draws itself."""


@checked_call("validate_every", "schedule_every", "log_every", "save_every")
def fit(
    *,
    epochs: float | None = None,
    steps: int | None = None,
    accumulate: int | None = None,
    clip: float | None = None,
    precision: Precision | None = None,
    compile: bool | None = None,
    validate_every: str | None = None,
    schedule_every: str | None = None,
    log_every: str | None = None,
    save_every: str | Sequence[str] | None = None,
    keep: int | None = None,
    best: str | None = None,
    ema: float | None = None,
    early_stop: int | None = None,
    overlays: str | Path | Sequence[str | Path] = (),
) -> Graph:
    """The graph `fit` with common settings; each sets a parameter of a node, or adds an overlay.

    Arguments:
        epochs: passes over `train_data`: `finish.after`. Default: 10.
        steps: steps of the optimizer: `finish.after`; with `epochs` too, whichever comes first.
        accumulate: batches whose gradients are added up for one step: `accumulate.every`. Default: 1.
        clip: the largest norm of the gradients: `clip.max_norm`. Default: no limit.
        precision: of the forward pass, such as "bf16-mixed": `train_batch.precision`; "16-mixed" adds the overlay
            `fp16`. Default: "32-true".
        compile: True compiles the training step: `train_batch.compile`. Default: False.
        validate_every: such as "1 epochs" or "500 steps": `validate.every`. Default: "1 epochs".
        schedule_every: when the scheduler is stepped: `schedule.every`. Default: "1 steps".
        log_every: how often a row of metrics is recorded: `log.every`. Default: "50 steps".
        save_every: one amount or several: `checkpoint.every`. Default: "1 epochs" and "10 minutes".
        keep: how many of the newest checkpoints are kept: `checkpoint.keep`. Default: 2.
        best: a metric by which the best checkpoint is kept too, such as "val/accuracy": `checkpoint.best`.
        ema: the decay of a moving average of the weights, which is validated: the overlay `ema`.
        early_stop: validations without a better "val/loss" after which the run ends: the overlay `early_stop`.
        overlays: others, by name or path, which are applied first. Default: none.

    Raises:
        EditError, GraphError: a value cannot be written in a graph, or the overlays cannot be combined.

    >>> fit(accumulate=4, clip=1.0) == Graph.load("fit").set("accumulate", every=4).set("clip", max_norm=1.0)
    True
    >>> fit(epochs=3, steps=1000).nodes["finish"]
    <Node finish: after = ["3 epochs", "1000 steps"]>
    """
    amounts = [f"{amount} {unit}" for amount, unit in ((epochs, "epochs"), (steps, "steps")) if amount is not None]
    edits: dict[str, dict[str, Any]] = {
        "finish": {"after": amounts if len(amounts) > 1 else next(iter(amounts), None)},
        "accumulate": {"every": accumulate},
        "clip": {"max_norm": clip},
        "train_batch": {"precision": precision, "compile": compile},
        "validate": {"every": validate_every},
        "schedule": {"every": schedule_every},
        "log": {"every": log_every},
        "checkpoint": {"every": save_every, "keep": keep, "best": best},
        "ema": {"decay": ema},
        "early_stop": {"patience": early_stop},
    }
    edits = {node: {name: value for name, value in edits[node].items() if value is not None} for node in edits}
    names = [overlays] if isinstance(overlays, str | Path) else [*overlays]
    names += ["fp16"] * (precision == "16-mixed") + [name for name in ("ema", "early_stop") if edits[name]]
    graph = Graph.load("fit").overlay(*dict.fromkeys(names))
    for node in filter(edits.get, edits):
        graph = graph.set(node, **edits[node])
    return graph
