"""Gradients divided by a metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.kind import node
from graphtrain.nodes._optimizers import optimizers_of, parameters_of


@node(effects="divide")
def guide(optimizer: Any, metrics: Mapping[str, float], *, metric: str = "guiding/loss") -> None:
    """Divide the gradients of `optimizer` by a metric of an evaluation, such as the loss on other data.

    Source: "another procedure between backward and step" of the page on loops of PyTorch Lightning 1.5, where the loss
    of a validation guides the training.

    Reads:
        metrics: what a node with the graph `evaluate` writes.

    Arguments:
        metric: its name. Default: "guiding/loss".

    Raises:
        UsageError: the evaluation gives no such metric, or it is not above 0.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("val_guided").set("guiding", reads={"val_data": "val_data"})
    >>> graph.check()
    []
    """
    if not metrics.get(metric, 0.0) > 0:
        raise UsageError(f"guide: {metric} is no number above 0 in {metrics}", "name a loss: guide.metric=guiding/loss")
    for parameter in parameters_of(*optimizers_of(optimizer)):
        if parameter.grad is not None:
            parameter.grad /= metrics[metric]
