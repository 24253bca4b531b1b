"""Where an evaluation ends: its metrics are recorded, and training finds everything as it was."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain.kind import node
from graphtrain.metrics.recorder import Recorder
from graphtrain.state.random import restore_random


@node(writes="metrics", effects="train")
def end_evaluation(
    model: torch.nn.Module, split: str, training_state: dict[str, Any], recorder: Recorder
) -> dict[str, float]:
    """Record the means, and put the training modes and the random numbers back.

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
    return metrics
