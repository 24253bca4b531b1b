"""Stochastic weight averaging."""

from typing import Any

from graphtrain.kind import node, progress
from graphtrain.kind.trigger import Trigger
from graphtrain.nodes.ema import move_towards


@node(copies={"swa_model": "model"}, family="update")
class Swa:
    """Keep in `swa_model` the mean of the weights of `model` over all visits; buffers are copied.

    If there is no resource `swa_model`, it is created as a copy of `model`; the first visit sets it to the weights at
    that visit. The overlay `update_bn` computes the batch-normalization statistics for the final mean.
    Source: Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018.

    Arguments:
        every: when to add the weights to the mean. Default: after every epoch.

    Guard fields:
        averaged: number of times the weights were added.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("swa").guard("swa_due", and_="next_batch.epochs >= 5")
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("1 epochs")

    averaged: int = progress(0, adds=1)

    def __call__(self, model: Any, swa_model: Any) -> None:
        self.averaged += 1
        move_towards(swa_model, model, 1 / self.averaged)
