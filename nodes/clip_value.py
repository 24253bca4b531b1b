"""Gradient clipping by value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.kind import node
from graphtrain.kind.parameter import Above
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import gradients_of, optimizers_of, parameters_of

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
        parameters = parameters_of(self._optimizers)
        if any(type(parameter).__name__ == "DTensor" for parameter in parameters):
            from graphtrain.ranks import sharded  # which few runs need

            for gradient in gradients_of(self._optimizers):
                local = sharded.local_of(gradient) if sharded.is_sharded(gradient) else gradient
                local.clamp_(-self.max_value, self.max_value)
            return
        torch.nn.utils.clip_grad_value_(parameters, self.max_value)
