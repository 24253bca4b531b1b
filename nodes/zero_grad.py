"""Clearing the gradients."""

from __future__ import annotations

from typing import Any

from graphtrain.kind import node
from graphtrain.nodes._late import torch
from graphtrain.nodes._optimizers import optimizers_of, parameters_of


@node(effects="zero_grad")
class ZeroGrad:
    """Clear the gradients of `optimizer`.

    Arguments:
        set_to_none: True drops the gradients, False fills them with zeros. Default: True, as in torch.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("zero_grad", set_to_none=False)
    >>> graph.check()
    []
    """

    set_to_none: bool = True

    _optimizers: tuple[Any, ...]

    def setup(self, optimizer: Any) -> None:
        self._optimizers, self._torchs_own = optimizers_of(optimizer), torch.optim.Optimizer.zero_grad

    def __call__(self) -> None:
        for optimizer in self._optimizers:
            clear = optimizer.zero_grad
            # What torch's own does in the end, without its bookkeeping: 0.6 us of 5.3 for 4 tensors.
            is_torchs = getattr(clear, "__func__", None) is self._torchs_own and clear.__self__ is optimizer
            if self.set_to_none and is_torchs:
                for parameter in parameters_of(optimizer):
                    parameter.grad = None
            else:
                clear(set_to_none=self.set_to_none)
