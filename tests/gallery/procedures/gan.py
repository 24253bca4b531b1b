"""Two steps of a critic for each step of a generator, which has a learning rate and an optimizer of its own."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources

EPOCHS, BATCHES, CRITIC_STEPS = 2, 5, 2


def graph() -> Graph:
    small = Graph.load("gan").set("alternate", every=CRITIC_STEPS).set("finish", after=f"{EPOCHS} epochs")
    return small.set("checkpoint", every="never").set("log", every="1 steps")


def generated(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model["generator"](torch.randn(len(batch), 2, dtype=torch.float64))


def critic_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    fake = model["critic"](generated(model, batch))
    return softplus(fake).mean() + softplus(-model["critic"](batch)).mean()


def generator_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return softplus(-model["critic"](generated(model, batch))).mean()


def validation_step(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"distance": (generated(model, batch).mean(0) - batch.mean(0)).norm()}


def resources() -> Resources:
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    model = torch.nn.ModuleDict({"generator": torch.nn.Linear(2, 3), "critic": torch.nn.Sequential(*layers)}).double()
    return {
        "model": model,
        "critic_optimizer": torch.optim.Adam(model["critic"].parameters(), lr=0.05),
        "generator_optimizer": torch.optim.Adam(model["generator"].parameters(), lr=0.02),
        "train_data": [torch.randn(4, 3, dtype=torch.float64) + 2 for _ in range(BATCHES)],
        "val_data": [torch.randn(4, 3, dtype=torch.float64) + 2 for _ in range(2)],
        "critic_loss": critic_loss,
        "generator_loss": generator_loss,
        "validation_step": validation_step,
    }


def by_hand(resources: Resources) -> None:
    model = resources["model"]

    def update(part: str, loss: torch.Tensor) -> None:
        gradients = torch.autograd.grad(loss, [*model[part].parameters()])
        for parameter, gradient in zip(model[part].parameters(), gradients, strict=True):
            parameter.grad = gradient
        resources[f"{part}_optimizer"].step()
        resources[f"{part}_optimizer"].zero_grad()

    for number, batch in enumerate(resources["train_data"] * EPOCHS, 1):
        update("critic", critic_loss(model, batch))
        if number % CRITIC_STEPS == 0:
            update("generator", generator_loss(model, batch))


PROCEDURE = Procedure(
    name="gan",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "critic_optimizer", "generator_optimizer"),
)
