"""Gradient clipping by value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.kind import node
from graphtrain.kind.parameter import Above
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import optimizers_of, parameters_of

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(effects="clip", optional="max_value")
class ClipValue:
    """Limit each component of the gradients of `optimizer` to ``-max_value .. max_value``.

    The result is that of ``torch.nn.utils.clip_grad_value_``.

    Arguments:
        max_value: the largest absolute value. Default: inf, no clipping; the node then costs nothing.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("clip_value").set("clip_value", max_value=0.5)
    >>> graph.check()
    []
    """

    max_value: Annotated[float, Above(0)] = math.inf

    _optimizers: tuple[Any, ...]

    def setup(self, optimizer: Any) -> None:
        self._optimizers = optimizers_of(optimizer)

    def __call__(self) -> None:
        torch.nn.utils.clip_grad_value_(parameters_of(self._optimizers), self.max_value)
