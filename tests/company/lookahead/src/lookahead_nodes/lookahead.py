"""Slow weights that look where the fast ones go."""

from __future__ import annotations

from typing import Annotated

import torch

from graphtrain import Above, Trigger, node


@node(copies={"slow_model": "model"})
class Lookahead:
    """Move slow weights a part of the way to those of the model, and let the model go on from there.

    Source: Zhang et al., "Lookahead optimizer: k steps forward, 1 step back", 2019.

    Arguments:
        every: how far the model looks ahead. Default: 5 steps.
        rate: the part of the way. Default: 0.5.

    >>> from graphtrain import Graph
    >>> Graph.load("fit").overlay("lookahead").check()
    []
    """

    every: Trigger = Trigger("5 steps")
    rate: Annotated[float, Above(0)] = 0.5

    def __call__(self, model: torch.nn.Module, slow_model: torch.nn.Module) -> None:
        with torch.no_grad():
            for slow, fast in zip(slow_model.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, self.rate)
                fast.copy_(slow)
