"""Where an evaluation ends: its metrics are recorded, and training finds everything as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphtrain.kind import node
from graphtrain.metrics.recorder import Recorder
from graphtrain.state.random import restore_random


@node(writes="metrics", effects="train")
def end_evaluation(
    model: torch.nn.Module,
    split: str,
    training_state: dict[str, Any],
    recorder: Recorder,
    notify: Callable[[str], None] | None = None,
) -> dict[str, float]:
    """Record the means, and put the training modes and the random numbers back.

    An evaluation without metrics, as of data without a batch, records no row, and is reported once.

    Writes:
        metrics: name -> mean over the samples, as Python numbers: ``{"val/loss": 0.31}``.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("evaluate")
    >>> graph.outputs
    ('metrics',)
    """
    metrics = {f"{split}/{name}": value for name, value in recorder.means(split).take("whole").items()}
    for name, module in model.named_modules():
        module.training = training_state["modes"].get(name, True)
    restore_random(training_state["random"])
    if metrics:
        recorder.row(metrics)
    elif notify is not None:
        notify(f"nothing was recorded as `{split}/...`: there was no batch to evaluate, or it gave no metrics")
    return metrics
