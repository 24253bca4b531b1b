"""What a user's step function may return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graphtrain.errors import UsageError


def loss_and_metrics(result: Any, function: str) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """The loss of a step function's result, and its other metrics.

    Raises:
        UsageError: the result is neither a scalar tensor nor a mapping with a scalar tensor `loss`.
    """
    if isinstance(result, torch.Tensor) and result.ndim == 0:
        return result, {}
    if isinstance(result, Mapping):
        loss = result.get("loss")
        if isinstance(loss, torch.Tensor) and loss.ndim == 0:
            return loss, {name: detached(value) for name, value in result.items() if name != "loss"}
        came = "a mapping without `loss`" if "loss" not in result else f"a mapping whose `loss` is {_describe(loss)}"
    else:
        came = _describe(result)
    raise UsageError(f"`{function}` must return a scalar loss, or a mapping with `loss`; it returned {came}")


def detached(value: Any) -> Any:
    """A metric without its autograd graph."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "nothing" if value is None else f"a {type(value).__name__}"
