"""One optimizer or several, as the slot `optimizer` of a node may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def optimizers_of(optimizer: Any) -> tuple[Any, ...]:
    """The optimizers in a slot: itself, or all of a list."""
    return optimizer if isinstance(optimizer, tuple) else (optimizer,)


class Parameters:
    """The parameters that one or several optimizers update, in their order.

    They are looked up once, and again when an optimizer has been given a further group: going through the modules of a
    model, as ``model.parameters()`` does, costs 1 us a module every time.

    Attributes:
        are_alike: plain tensors, all of one device and type, as of the last look.

    >>> linear = torch.nn.Linear(2, 3)
    >>> parameters = Parameters(torch.optim.SGD([linear.weight]))
    >>> [tuple(one.shape) for one in parameters.now()]
    [(3, 2)]
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizers = optimizers_of(optimizer)
        self._groups = -1
        self._found: list[torch.Tensor] = []
        self.are_alike = True

    def now(self) -> list[torch.Tensor]:
        """All of them; not to be changed."""
        groups = 0
        for one in self._optimizers:
            groups += len(one.param_groups)
        if groups != self._groups:
            self._groups = groups
            self._found = [
                parameter for one in self._optimizers for group in one.param_groups for parameter in group["params"]
            ]
            kinds = {(one.device, one.dtype) for one in self._found}
            self.are_alike = len(kinds) < 2 and all(type(one) in _PLAIN for one in self._found)
        return self._found


def call_each(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """One call that makes all of `calls` in turn; the call itself where there is one."""
    if len(calls) == 1:
        return calls[0]

    def each() -> None:
        for call in calls:
            call()

    return each
