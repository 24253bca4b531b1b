"""Gradient clipping by norm."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch

from graphtrain.kind import node
from graphtrain.nodes.optimizers import parameters_of
from graphtrain.parameter import Above


@node(effects="clip")
class Clip:
    """Scale the gradients of `optimizer` so that their total norm is at most `max_norm`.

    The list of parameters is looked up once, when the graph is entered.
    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013.

    Arguments:
        max_norm: the largest total norm. Default: inf, no clipping; the node then costs nothing.
        norm_type: the order of the norm. Default: 2; inf takes the largest absolute value.
    """

    max_norm: Annotated[float, Above(0)] = math.inf
    norm_type: Annotated[float, Above(0)] = 2.0

    _parameters: list[torch.Tensor]

    def is_idle(self) -> bool:
        return self.max_norm == math.inf

    def setup(self, optimizer: Any) -> None:
        self._parameters = parameters_of(optimizer)

    def __call__(self) -> None:
        torch.nn.utils.clip_grad_norm_(self._parameters, self.max_norm, norm_type=self.norm_type)
