"""One optimizer or several, as the slot `optimizer` of a node may hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def optimizers_of(optimizer: Any) -> tuple[Any, ...]:
    """The optimizers in a slot: itself, or all of a list."""
    return optimizer if isinstance(optimizer, tuple) else (optimizer,)


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """The parameters that one or several optimizers update, in their order."""
    return [
        parameter for one in optimizers_of(optimizer) for group in one.param_groups for parameter in group["params"]
    ]


def call_each(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """One call that makes all of `calls` in turn; the call itself where there is one."""
    if len(calls) == 1:
        return calls[0]

    def each() -> None:
        for call in calls:
            call()

    return each
