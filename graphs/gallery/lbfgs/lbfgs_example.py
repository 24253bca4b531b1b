"""LBFGS fits a small network to a function of one variable, with all training data in each batch.

    graphtrain run graphs/gallery/lbfgs/lbfgs_example.py
    graphtrain run graphs/gallery/lbfgs/lbfgs_example.py --graph fit optimizer=adam finish.after='1600 epochs'

In the graph `lbfgs`, one node lets the optimizer compute the loss and its gradients as often as its line search needs
them, about 1,600 times in 100 steps. The second command uses the same number of evaluations for as many Adam steps.
`val/loss` is the mean squared error at points between the training points.
Source: Nocedal, "Updating quasi-Newton matrices with limited storage", 1980.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import mse_loss

from graphtrain import Graph

METRIC = "val/loss"
BASELINE = 1.7e-3  # of Adam, with as many evaluations: the least of three seeds and three learning rates
LEVEL = 1e-5  # ends between 8e-7 and 4e-6 with these seeds

graph = Graph.load("lbfgs").set("validate", every="10 steps").set("finish", after="100 epochs")


def function(points: torch.Tensor) -> torch.Tensor:
    """A wave with increasing frequency."""
    return torch.sin(2 * torch.pi * points.square()) * torch.exp(-points)


def training_step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The mean squared error."""
    return mse_loss(model(batch[0]), batch[1])


def setup(optimizer: Literal["lbfgs", "adam"] = "lbfgs", width: int = 32) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        optimizer: lbfgs, or adam for the graph `fit`.
        width: hidden units of each of the two layers.
    """
    torch.set_num_threads(1)  # a network this small is slower with two
    model = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    model = model.double()
    points = torch.linspace(0, 2, 401, dtype=torch.float64).unsqueeze(1)
    train, val = points[::2], points[1::2]
    return {
        "model": model,
        "optimizer": torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
        if optimizer == "lbfgs"
        else torch.optim.Adam(model.parameters(), lr=1e-2),
        "train_data": [(train, function(train))],
        "val_data": [(val, function(val))],
        "training_step": training_step,
    }
