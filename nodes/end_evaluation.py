"""Where an evaluation ends: its metrics are recorded, and training finds everything as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.metrics.recorder import Recorder
    from graphtrain.nodes import _evaluation as evaluation
else:
    evaluation = lazy_import("graphtrain.nodes._evaluation")


@node(writes="metrics", effects="train", synchronises=True)
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
    return evaluation.put_back(model, split, training_state, recorder, notify)
