"""An exponential moving average of the weights."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from graphtrain.errors import UsageError
from graphtrain.kind import copy_of, node
from graphtrain.kind.parameter import Above
from graphtrain.nodes._average import move_towards


@node(makes={"average": copy_of("model")}, family="update")
class Ema:
    """Move the weights of `average` towards those of `model` by ``1 - decay`` of the way; its buffers are copied.

    Without a resource `average` it begins as a copy of `model`. Where a validation reads it as its `model`, the average
    is validated. Others (timm, torch's `AveragedModel`) begin with a smaller decay, or copy no buffers.
    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992.

    Arguments:
        decay: the part of the average that stays, above 0 and below 1. Default: 0.999.

    Raises:
        UsageError: the decay is 1 or more.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("ema").set("ema", decay=0.99)
    >>> graph.check()
    []
    """

    decay: Annotated[float, Above(0)] = 0.999

    def setup(self) -> None:
        if self.decay >= 1:
            raise UsageError(f"ema.decay: expected a number below 1, got {self.decay}", "as in ema.decay=0.999")

    def __call__(self, model: torch.nn.Module, average: Any) -> None:
        move_towards(average, model, 1 - self.decay)
