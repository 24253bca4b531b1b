"""An exponential moving average of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.errors import UsageError
from graphtrain.kind import copy_of, node, progress
from graphtrain.kind.parameter import Above
from graphtrain.nodes.copy_weights import move_towards

if TYPE_CHECKING:
    import torch


@node(makes={"average": copy_of("model")}, family="update")
class Ema:
    """Move the weights of `average` towards those of `model` by ``1 - decay`` of the way; its buffers are copied.

    Without a resource `average` it begins as a copy of `model`. Where a validation reads it as its `model`, the average
    is validated. torch's `AveragedModel` copies no buffers unless it is told to.
    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; the warm-up is that of
    TensorFlow's `ExponentialMovingAverage` with `num_updates`.

    Arguments:
        decay: the part of the average that stays, above 0 and below 1. Default: 0.999.
        warmup: True lets the decay grow with the number n of updates so far, as ``min(decay, (1 + n) / (10 + n))``, so
            that the untrained weights with which the average began are soon out of it. Default: False, the decay is the
            same at every step. The overlay `ema` sets True.

    Guard fields:
        updates: how often the average was moved.

    Raises:
        UsageError: the decay is 1 or more.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("ema").set("ema", decay=0.99)
    >>> graph.check()
    []
    """

    decay: Annotated[float, Above(0)] = 0.999
    warmup: bool = False

    updates: int = progress(0, adds=1)

    def setup(self) -> None:
        if self.decay >= 1:
            raise UsageError(f"ema.decay: expected a number below 1, got {self.decay}", "as in ema.decay=0.999")

    def __call__(self, model: torch.nn.Module, average: Any) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        self.updates += 1
        move_towards(average, model, 1 - decay)
