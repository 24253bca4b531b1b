"""A body that reconstructs, and a head that classifies what it has learned, each with an optimizer and a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphtrain import Graph
from tests.procedure import Procedure, Resources, numbers, short, step_with_mean_gradients

EPOCHS, BATCHES = 2, 5


def graph() -> Graph:
    return short(Graph.load("yielding"), EPOCHS)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Dropout(0.2))
        self.back, self.head = torch.nn.Linear(2, 3), torch.nn.Linear(2, 1)


def body_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model.back(model.body(batch)) - batch).square().mean()
    return loss


def head_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """It would train the body too, were that not the other optimizer's."""
    loss: torch.Tensor = (model.head(model.body(batch)) - batch.sum(1, keepdim=True)).square().mean()
    return loss


LOSSES: list[Callable[[Any, torch.Tensor], torch.Tensor]] = [body_loss, head_loss]


def resources() -> Resources:
    torch.manual_seed(1)
    model = Net().double()
    body = torch.optim.Adam([*model.body.parameters(), *model.back.parameters()], lr=0.05)
    return {
        "model": model,
        "optimizer": (body, torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)),
        "train_data": numbers(*[4] * BATCHES),
        "val_data": numbers(4),
        "losses": LOSSES,
        "validation_step": head_loss,
    }


def by_hand(resources: Resources) -> None:
    for batch in resources["train_data"] * EPOCHS:
        for optimizer, loss_of in zip(resources["optimizer"], LOSSES, strict=True):
            parameters = optimizer.param_groups[0]["params"]
            step_with_mean_gradients(parameters, [loss_of(resources["model"], batch)], optimizer)


PROCEDURE = Procedure(
    "yielding",
    graph,
    resources,
    by_hand,
    compared=("model",),
    bad={
        "one loss": (lambda it: it.but(losses=LOSSES[:1]), "`losses` is a list of 1 for 2 optimizers"),
        "a function as losses": (
            lambda it: it.but(losses=lambda made: body_loss),
            "`losses` is a function for 2 optimizers\n.*supply a list of as many",
        ),
    },
)
