"""Dividing gradients by a metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphtrain import Metric, UsageError, node, parameters_of

_HINT = "give the evaluation data, and name a loss that is above 0: guide.metric=guiding/loss"


@node(effects="divide")
class Guide:
    """Divide the gradients of `optimizer` by a metric of an evaluation, such as the loss on held-out data.

    Source: "another procedure between backward and step" of the page on loops of PyTorch Lightning 1.5, where the loss
    of a validation guides the training.

    Reads:
        metrics: the metrics written by a node with the graph `evaluate`.

    Arguments:
        metric: name of the metric. Default: "guiding/loss".

    Raises:
        UsageError: the evaluation does not give this metric, or it is not above 0.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("val_guided").set("guiding", reads={"val_data": "val_data"})
    >>> graph.check()
    []
    """

    metric: Metric = "guiding/loss"

    def __call__(self, optimizer: Any, metrics: Mapping[str, float]) -> None:
        if not (value := metrics.get(self.metric, 0.0)) > 0:
            given = dict(metrics) or "nothing: it had no batch"
            raise UsageError(f"guide divides by {self.metric}, and the evaluation gives {given}", _HINT)
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                parameter.grad /= value
