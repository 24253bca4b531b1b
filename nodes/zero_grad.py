"""Clearing the gradients."""

from __future__ import annotations

from typing import Any

from graphtrain.kind import node
from graphtrain.nodes._optimizers import optimizers_of


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
        self._optimizers = optimizers_of(optimizer)

    def __call__(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=self.set_to_none)
