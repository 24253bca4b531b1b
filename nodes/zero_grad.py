"""Clearing the gradients, after a step or instead of one."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain.kind import node
from graphtrain.nodes.optimizers import optimizers_of, parameters_of

_TORCHS_OWN = torch.optim.Optimizer.zero_grad


class _Clearing:
    set_to_none: bool = True

    _optimizers: tuple[Any, ...]

    def setup(self, optimizer: Any) -> None:
        self._optimizers = optimizers_of(optimizer)

    def __call__(self) -> None:
        for one in self._optimizers:
            clear = one.zero_grad
            # What torch's own does in the end, without its bookkeeping: 0.6 us of 5.3 for 4 tensors.
            if self.set_to_none and getattr(clear, "__func__", None) is _TORCHS_OWN and clear.__self__ is one:
                for parameter in parameters_of(one):
                    parameter.grad = None
            else:
                clear(set_to_none=self.set_to_none)


@node(effects="zero_grad")
class ZeroGrad(_Clearing):
    """Clear the gradients of `optimizer`.

    Arguments:
        set_to_none: True drops the gradients, False fills them with zeros. Default: True, as in torch.
    """


@node(effects=("use", "zero_grad"))
class Discard(_Clearing):
    """Throw the gradients of `optimizer` away without a step: one policy for a short last window.

    Arguments:
        set_to_none: True drops the gradients, False fills them with zeros. Default: True, as in torch.
    """
