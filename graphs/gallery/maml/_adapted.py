"""Calling step functions of a model with temporarily changed weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain import lazy_import

if TYPE_CHECKING:
    import torch

    Weights = Mapping[str, torch.Tensor]
else:
    torch = lazy_import("torch")


def shifted(model: torch.nn.Module, shift: Weights) -> dict[str, torch.Tensor]:
    """The parameters of a model that have a shift, with the shift added; gradients reach both."""
    return {name: weight + shift[name] for name, weight in model.named_parameters() if name in shift}


def call_with(weights: Weights, function: Callable[[Any, Any], Any], model: torch.nn.Module, batch: Any) -> Any:
    """Call a step function with a model that has other weights during the call."""
    step = torch.nn.Module()  # what torch swaps the weights of: the step function may use the model in any way
    step.add_module("model", model)
    step.forward = functools.partial(function, model)
    shared = {id(weight): weights[name] for name, weight in model.named_parameters() if name in weights}
    named = {  # each place of a weight that several modules have, and each module that has several names only once
        f"model.{path}.{name}" if path else f"model.{name}": shared[id(weight)]
        for path, module in model.named_modules()
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(weight) in shared
    }
    return torch.func.functional_call(step, named, (batch,), tie_weights=False)
