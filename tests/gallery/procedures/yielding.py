"""A body that reconstructs, and a head that classifies what it has learned, each with an optimizer and a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources

EPOCHS, BATCHES = 2, 5


def graph() -> Graph:
    small = Graph.load("yielding").set("finish", after=f"{EPOCHS} epochs")
    return small.set("checkpoint", every="never").set("log", every="1 steps")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Dropout(0.2))
        self.back, self.head = torch.nn.Linear(2, 3), torch.nn.Linear(2, 1)


def body_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (model.back(model.body(batch)) - batch).square().mean()


def head_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """It would train the body too, were that not the other optimizer's."""
    return (model.head(model.body(batch)) - batch.sum(1, keepdim=True)).square().mean()


LOSSES: list[Callable[[Any, torch.Tensor], torch.Tensor]] = [body_loss, head_loss]


def resources() -> Resources:
    torch.manual_seed(1)
    model = Net().double()
    body = torch.optim.Adam([*model.body.parameters(), *model.back.parameters()], lr=0.05)
    return {
        "model": model,
        "optimizer": (body, torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)),
        "train_data": [torch.randn(4, 3, dtype=torch.float64) for _ in range(BATCHES)],
        "val_data": [torch.randn(4, 3, dtype=torch.float64)],
        "losses": LOSSES,
        "validation_step": head_loss,
    }


def by_hand(resources: Resources) -> None:
    model = resources["model"]
    for batch in resources["train_data"] * EPOCHS:
        for optimizer, loss_of in zip(resources["optimizer"], LOSSES, strict=True):
            parameters = optimizer.param_groups[0]["params"]
            for parameter, gradient in zip(
                parameters, torch.autograd.grad(loss_of(model, batch), parameters), strict=True
            ):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()


def with_one_loss(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
    return graph, {**resources, "losses": LOSSES[:1]}


def with_a_function(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
    return graph, {**resources, "losses": body_loss}


PROCEDURE = Procedure(
    name="yielding",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    bad={
        "one loss": (with_one_loss, "`losses` is a list of 1, and there are 2 optimizers"),
        "a function as losses": (
            with_a_function,
            "`losses` is a function, and there are 2 optimizers\n.*pass a list of functions",
        ),
    },
)
