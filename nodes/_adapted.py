"""Step functions of a model whose weights are others for the time of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

Weights = Mapping[str, torch.Tensor]


def shifted(model: torch.nn.Module, shift: Weights) -> dict[str, torch.Tensor]:
    """The parameters of a model that have a shift, with it added; gradients reach the parameters, and the shift."""
    return {name: weight + shift[name] for name, weight in model.named_parameters() if name in shift}


def call_with(weights: Weights, function: Callable[[Any, Any], Any], model: torch.nn.Module, batch: Any) -> Any:
    """Call a step function with a model that has other weights meanwhile."""
    step = torch.nn.Module()  # what torch swaps the weights of: the step function may use the model in any way
    step.add_module("model", model)
    step.forward = functools.partial(function, model)
    named = {f"model.{name}": weight for name, weight in weights.items()}
    return torch.func.functional_call(step, named, (batch,))
