"""Clearing the gradients, after a step or instead of one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from graphtrain.kind import node
from graphtrain.nodes.optimizers import call_each, optimizers_of


class _Clearing:
    set_to_none: bool = True

    _clear: Callable[[], Any]

    def setup(self, optimizer: Any) -> None:
        calls: list[Callable[[], Any]] = [
            functools.partial(one.zero_grad, set_to_none=self.set_to_none) for one in optimizers_of(optimizer)
        ]
        self._clear = call_each(calls)

    def __call__(self) -> None:
        self._clear()


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
