"""The smallest training there is, which the examples of the pages in docs/ change: `from small import resources`."""

from __future__ import annotations

from typing import Any

import torch


def resources() -> dict[str, Any]:
    """A linear layer, its optimizer, ten batches and a training step; the same at each call."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.randn(8, 4) for _ in range(10)],
        "training_step": lambda model, batch: model(batch).square().mean(),
    }
