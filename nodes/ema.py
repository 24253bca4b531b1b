"""An exponential moving average of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.kind import copy_of, node, progress
from graphtrain.kind.parameter import Above, Below
from graphtrain.nodes.copy_weights import move_towards

if TYPE_CHECKING:
    import torch


@node(makes={"average": copy_of("model")}, family="update")
class Ema:
    """Update the weights of `average` as an exponential moving average of those of `model`; buffers are copied.

    If there is no resource `average`, it is created as a copy of `model`. A validation that reads it as its `model`
    evaluates the average. Unlike here, torch's `AveragedModel` does not copy buffers by default.
    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; the warm-up is that of
    TensorFlow's `ExponentialMovingAverage` with `num_updates`.

    Arguments:
        decay: weight of the old average in each update, between 0 and 1. Default: 0.999.
        warmup: True increases the decay with the number n of updates so far, as ``min(decay, (1 + n) / (10 + n))``, so
            that the initial, untrained weights soon lose their influence. Default: False, the decay is the same at
            every step. The overlay `ema` sets True.

    Guard fields:
        updates: number of updates of the average.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("ema").set("ema", decay=0.99)
    >>> graph.check()
    []
    """

    decay: Annotated[float, Above(0), Below(1)] = 0.999
    warmup: bool = False

    updates: int = progress(0, adds=1)

    def __call__(self, model: torch.nn.Module, average: Any) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        self.updates += 1
        move_towards(average, model, 1 - decay)
