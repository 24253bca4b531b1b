"""The smallest training there is, which the examples of the pages in docs/ change: `from small import resources`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch

from graphtrain import Graph, Trainer


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


def train_and_resume(graph: Graph, make_resources: Callable[[], dict[str, Any]] = resources, cut: int = 60) -> Trainer:
    """Train, and check that a run that is interrupted after `cut` transitions and resumed has the same result."""
    whole = Trainer(graph, display=None, notify=lambda line: None, **make_resources())
    whole.run()
    with tempfile.TemporaryDirectory() as run_dir:
        first, second = (
            Trainer(graph, run_dir=run_dir, display=None, notify=lambda line: None, **make_resources())
            for _ in range(2)
        )
        first.advance(cut)
        first.save()
        second.run()
    assert second.digest() == whole.digest(), f"cut before {first.position}"
    return whole


def equal(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    """True if the weights of two models are the same, bit for bit."""
    return all(map(torch.equal, model.parameters(), other.parameters()))
