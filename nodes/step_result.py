"""What a user's step function may return."""

from __future__ import annotations

import numbers
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
            return loss, metrics_of({name: value for name, value in result.items() if name != "loss"}, function)
        came = "a mapping without `loss`" if "loss" not in result else f"a mapping whose `loss` is {_describe(loss)}"
    else:
        came = _describe(result)
    raise UsageError(f"`{function}` must return a scalar loss, or a mapping with `loss`; it returned {came}")


def metrics_of(result: Mapping[str, Any], function: str) -> dict[str, Any]:
    """The metrics of a step function's result, without their autograd graphs.

    Raises:
        UsageError: one is neither a number nor a scalar tensor; said at the first batch, not when a mean is taken.
    """
    return {name: _metric(name, value, function) for name, value in result.items()}


def _metric(name: str, value: Any, function: str) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.detach()
    if isinstance(value, numbers.Real):
        return value
    raise UsageError(
        f"`{function}` returned `{name}`, {_describe(value)}; metrics are numbers or scalar tensors",
        "return a mean of it, or leave it out",
    )


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "nothing" if value is None else f"a {type(value).__name__}"
