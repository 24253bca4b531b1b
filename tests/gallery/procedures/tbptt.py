"""Sequences of seven cut into splits of three, between which a hidden state passes."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain import Graph
from tests.gallery.procedure import Change, Procedure, Resources

EPOCHS, BATCHES, LENGTH = 2, 3, 3


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = torch.nn.GRU(2, 3, batch_first=True)
        self.drop = torch.nn.Dropout(0.2)
        self.head = torch.nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor, hidden: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, hidden = self.recurrent(inputs, hidden)
        return self.head(self.drop(outputs)), hidden


def graph() -> Graph:
    small = Graph.load("tbptt").set("split_batch", length=LENGTH).set("finish", after=f"{EPOCHS} epochs")
    return small.set("checkpoint", every="never").set("log", every="1 steps")


def training_step(model: torch.nn.Module, batch: torch.Tensor, hidden: torch.Tensor | None = None) -> dict[str, Any]:
    outputs, hidden = model(batch, hidden)
    return {"loss": (outputs - batch.cumsum(1)).square().mean(), "hidden": hidden}


def validation_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch, None)[0] - batch.cumsum(1)).square().mean()


def resources() -> Resources:
    torch.manual_seed(1)
    model = Recurrent().double()
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.05),
        "train_data": [torch.randn(4, 7, 2, dtype=torch.float64) for _ in range(BATCHES)],
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
            resources["optimizer"].step()
            resources["optimizer"].zero_grad()


def with_splits(**parameters: Any) -> Change:
    return lambda graph, resources: (graph.set("split_batch", **parameters), resources)


PROCEDURE = Procedure(
    name="tbptt",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer"),
    bad={
        "no such dimension": (with_splits(dimension=3), r"the lengths \[\] along dimension 3"),
    },
)
