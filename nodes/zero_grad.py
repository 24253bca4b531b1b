"""Clearing the gradients, after a step or instead of one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from graphtrain.kind import node
from graphtrain.nodes.optimizers import Parameters, call_each, optimizers_of


class _Clearing:
    set_to_none: bool = True

    _clear: Callable[[], Any]

    def setup(self, optimizer: Any) -> None:
        self._clear = call_each([_clearing(one, self.set_to_none) for one in optimizers_of(optimizer)])

    def __call__(self) -> None:
        self._clear()


def _clearing(optimizer: Any, set_to_none: bool) -> Callable[[], Any]:
    """The optimizer's `zero_grad`; where that is torch's own, what it does in the end (0.3 us of 5.3 for 4 tensors)."""
    own = getattr(optimizer.zero_grad, "__func__", None)
    if not set_to_none or own is not torch.optim.Optimizer.zero_grad:
        return functools.partial(optimizer.zero_grad, set_to_none=set_to_none)
    parameters = Parameters(optimizer)

    def clear() -> None:
        for one in parameters.now():
            one.grad = None

    return clear


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
