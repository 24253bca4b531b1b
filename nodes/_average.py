"""Averages of the weights of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


def move_towards(average: Any, model: Any, weight: float) -> None:
    """Move parameters of `average`, in their type, a part of the way towards those of `model`; buffers are copied."""
    with torch.no_grad():
        if any(
            map(torch.nn.parameter.is_lazy, average.parameters())
        ):  # it was copied before the first batch, and gets its form now
            average.load_state_dict(model.state_dict())
        means, values = list(average.parameters()), list(model.parameters())
        if means and values and means[0].dtype != values[0].dtype:  # as of an average in float32 that was supplied
            values = [value.to(mean.dtype) for mean, value in zip(means, values, strict=True)]
        if means and all(mean.is_floating_point() for mean in means):
            torch._foreach_lerp_(means, values, weight)
        else:
            for mean, value in zip(means, values, strict=True):
                mean.lerp_(value, weight) if mean.is_floating_point() else mean.copy_(value)
        for mean, value in zip(average.buffers(), model.buffers(), strict=True):
            mean.copy_(value)
