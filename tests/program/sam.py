"""Two passes on one batch inside a window, as sharpness-aware minimization takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from graphtrain.kind import StepFunction

RADIUS = 0.05


class SamBatch:
    """Add the gradients at the worst weights nearby; those of the window are kept aside meanwhile."""

    def setup(self, optimizer: torch.optim.Optimizer) -> None:
        self._weights = [weight for group in optimizer.param_groups for weight in group["params"]]

    def __call__(self, model: Any, batch: Any, training_step: StepFunction, window: int = 1) -> Any:
        window_so_far = [weight.grad for weight in self._weights]
        loss = training_step(model, batch)
        gradients = torch.autograd.grad(loss, self._weights)
        factor = RADIUS / nn.utils.get_total_norm(gradients)
        before = [weight.detach().clone() for weight in self._weights]
        with torch.no_grad():
            for weight, gradient in zip(self._weights, gradients, strict=True):
                weight.grad = None
                weight += factor * gradient
        (training_step(model, batch) / window).backward()
        with torch.no_grad():
            for weight, value, earlier in zip(self._weights, before, window_so_far, strict=True):
                weight.copy_(value)
                if earlier is not None:
                    weight.grad += earlier
        return loss.detach()
