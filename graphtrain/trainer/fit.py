"""`graphtrain.fit`: the graph `fit` with the settings that everybody brings, by the names that they bring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphtrain.kind.parameter import Precision
from graphtrain.trainer.graph import Graph

# The edit of each setting: the node, the parameter, and the unit of an amount.
_EDITS: dict[str, tuple[str, str, str]] = {
    "epochs": ("finish", "after", "epochs"),
    "steps": ("finish", "after", "steps"),
    "accumulate": ("accumulate", "every", ""),
    "clip": ("clip", "max_norm", ""),
    "precision": ("train_batch", "precision", ""),
    "compile": ("train_batch", "compile", ""),
    "train_batches": ("next_batch", "limit", ""),
    "validate_every": ("validate", "every", ""),
    "validate_batches": ("validate/next_batch", "limit", ""),
    "schedule_every": ("schedule", "every", ""),
    "log_every": ("log", "every", ""),
    "save_every": ("checkpoint", "every", ""),
    "keep": ("checkpoint", "keep", ""),
    "best": ("checkpoint", "best", ""),
    "best_mode": ("checkpoint", "best_mode", ""),
    "ema": ("ema", "decay", ""),
    "early_stop": ("early_stop", "patience", ""),
}


def fit(
    *,
    epochs: float | None = None,
    steps: int | None = None,
    accumulate: int | None = None,
    clip: float | None = None,
    precision: Precision | None = None,
    compile: bool | None = None,
    train_batches: float | None = None,
    validate_every: str | None = None,
    validate_batches: float | None = None,
    schedule_every: str | None = None,
    log_every: str | None = None,
    save_every: str | Sequence[str] | None = None,
    keep: int | None = None,
    best: str | None = None,
    best_mode: str | None = None,
    ema: float | None = None,
    early_stop: int | None = None,
    overlays: str | Path | Sequence[str | Path] = (),
) -> Graph:
    """The graph `fit` with settings; each is one edit, which ``print(graph)`` shows.

    Nothing here is special: the returned graph is a value like any other, and ``fit(accumulate=4)`` equals
    ``Graph.load("fit").set("accumulate", every=4)``.

    Arguments:
        epochs: passes over `train_data`: `finish.after`. Default: 10.
        steps: steps of the optimizer: `finish.after`; with `epochs` too, whichever comes first.
        accumulate: batches whose gradients are added up for one step: `accumulate.every`. Default: 1.
        clip: the largest norm of the gradients: `clip.max_norm`. Default: no limit.
        precision: of the forward pass, such as "bf16-mixed": `train_batch.precision`; "16-mixed" adds the overlay
            `fp16`. Default: "32-true".
        compile: True compiles the training step: `train_batch.compile`. Default: False.
        train_batches: batches of an epoch, or a share of them below 1: `next_batch.limit`. Default: all.
        validate_every: such as "1 epochs" or "500 steps": `validate.every`. Default: "1 epochs".
        validate_batches: batches of a validation, or a share of them below 1. Default: all.
        schedule_every: when the scheduler is stepped: `schedule.every`. Default: "1 steps".
        log_every: how often a row of metrics is recorded: `log.every`. Default: "50 steps".
        save_every: one amount or several: `checkpoint.every`. Default: "1 epochs" and "10 minutes".
        keep: how many of the newest checkpoints stay: `checkpoint.keep`. Default: 2.
        best: a metric of which the best checkpoint stays too, such as "val/accuracy": `checkpoint.best`.
        best_mode: "min" or "max": `checkpoint.best_mode`. Default: by the name of the metric, where it tells.
        ema: the decay of a moving average of the weights, which is validated: the overlay `ema`.
        early_stop: validations without a better "val/loss" after which the run ends: the overlay `early_stop`.
        overlays: further ones, by name or path.

    Raises:
        EditError, GraphError: a value cannot be one, or overlays do not compose.

    >>> graph = fit(epochs=3, accumulate=4, clip=1.0, best="val/accuracy")
    >>> graph == Graph.load("fit").set("finish", after="3 epochs").set("accumulate", every=4).set(
    ...     "clip", max_norm=1.0
    ... ).set("checkpoint", best="val/accuracy")
    True
    >>> fit(epochs=3, steps=1000).nodes["finish"]
    <Node finish: after = ["3 epochs", "1000 steps"]>
    """
    settings = {name: value for name, value in locals().items() if name in _EDITS and value is not None}
    edits: dict[str, dict[str, Any]] = {}
    further = [overlays] if isinstance(overlays, str | Path) else [*overlays]
    further += ["fp16"] if precision == "16-mixed" else []
    further += [name for name in ("ema", "early_stop") if name in settings]
    for name, value in settings.items():
        node, parameter, unit = _EDITS[name]
        new, before = f"{value} {unit}" if unit else value, edits.setdefault(node, {}).get(parameter)
        edits[node][parameter] = new if before is None else [before, new]
    graph = Graph.load("fit").overlay(*dict.fromkeys(further))
    for node, parameters in edits.items():
        graph = graph.set(node, **parameters)
    return graph
