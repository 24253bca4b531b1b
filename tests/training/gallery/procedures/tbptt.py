"""Sequences of seven cut into splits of three, between which a hidden state passes."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain import Graph
from tests.procedure import Procedure, Resources, short, step

EPOCHS, LENGTH = 2, 3


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = torch.nn.GRU(2, 3, batch_first=True)
        self.drop = torch.nn.Dropout(0.2)
        self.head = torch.nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor, hidden: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, hidden = self.recurrent(inputs, hidden)
        return self.head(self.drop(outputs)), hidden  # type: ignore[return-value]


def graph() -> Graph:
    return short(Graph.load("tbptt").set("split_batch", length=LENGTH), EPOCHS)


def training_step(model: torch.nn.Module, batch: torch.Tensor, hidden: torch.Tensor | None = None) -> dict[str, Any]:
    outputs, hidden = model(batch, hidden)
    return {"loss": (outputs - batch.cumsum(1)).square().mean(), "hidden": hidden}


def validation_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = training_step(model, batch)["loss"]
    return loss


def resources() -> Resources:
    torch.manual_seed(1)
    model = Recurrent().double()
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.05),
        "train_data": [torch.randn(4, 7, 2, dtype=torch.float64) for _ in range(3)],
        "val_data": [torch.randn(4, 5, 2, dtype=torch.float64) for _ in range(2)],
        "training_step": training_step,
        "validation_step": validation_step,
    }


def by_hand(resources: Resources) -> None:
    for batch in resources["train_data"] * EPOCHS:
        hidden = None
        for split in batch.split(LENGTH, dim=1):
            result = training_step(resources["model"], split, hidden)
            result["loss"].backward()
            hidden = result["hidden"].detach()
            step(resources["optimizer"])


def of(data: Any) -> Any:
    return lambda it: it.but(train_data=[data])


PROCEDURE = Procedure(
    "tbptt",
    graph,
    resources,
    by_hand,
    bad={
        "no such dimension": (
            lambda it: it.but(it.graph.set("split_batch", dimension=3)),
            r"the lengths \[\] along dimension 3",
        ),
        "inputs and targets of two lengths": (
            of((torch.rand(2, 5), torch.rand(2, 3))),
            r"the lengths \[3, 5\] along dimension 1",
        ),
        "no time": (of(torch.rand(5)), r"the lengths \[\] along dimension 1"),
        "no time at all": (of(torch.rand(5, 0)), r"the lengths \[0\] along dimension 1"),
        "a text": (of("text"), r"the lengths \[\] along dimension 1"),
    },
)
