"""Two steps of a critic for each step of a generator, which has a learning rate and an optimizer of its own."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus

from graphtrain import Graph
from tests.procedure import Procedure, Resources, numbers, short, step_with_mean_gradients

EPOCHS, BATCHES, CRITIC_STEPS = 2, 5, 2


def graph() -> Graph:
    return short(Graph.load("gan").set("alternate", every=CRITIC_STEPS), EPOCHS)


def generated(model: torch.nn.ModuleDict, batch: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = model["generator"](torch.randn(len(batch), 2, dtype=torch.float64))
    return made


def critic_loss(model: torch.nn.ModuleDict, batch: torch.Tensor) -> torch.Tensor:
    fake = model["critic"](generated(model, batch))
    return softplus(fake).mean() + softplus(-model["critic"](batch)).mean()


def generator_loss(model: torch.nn.ModuleDict, batch: torch.Tensor) -> torch.Tensor:
    return softplus(-model["critic"](generated(model, batch))).mean()


def validation_step(model: torch.nn.ModuleDict, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"distance": (generated(model, batch).mean(0) - batch.mean(0)).norm()}


def resources() -> Resources:
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    model = torch.nn.ModuleDict({"generator": torch.nn.Linear(2, 3), "critic": torch.nn.Sequential(*layers)}).double()
    return {
        "model": model,
        "critic_optimizer": torch.optim.Adam(model["critic"].parameters(), lr=0.05),
        "generator_optimizer": torch.optim.Adam(model["generator"].parameters(), lr=0.02),
        "train_data": [batch + 2 for batch in numbers(*[4] * BATCHES)],
        "val_data": [batch + 2 for batch in numbers(4, 4)],
        "critic_loss": critic_loss,
        "generator_loss": generator_loss,
        "validation_step": validation_step,
    }


def update(resources: Resources, part: str, batches: list[torch.Tensor], window: int = 1) -> None:
    """Step one of the two with the gradients of some batches."""
    model, loss_of = resources["model"], resources[f"{part}_loss"]
    losses = [loss_of(model, batch) / window for batch in batches]
    step_with_mean_gradients(model[part].parameters(), losses, resources[f"{part}_optimizer"])


def by_hand(resources: Resources) -> None:
    for number, batch in enumerate(resources["train_data"] * EPOCHS, 1):
        update(resources, "critic", [batch])
        if number % CRITIC_STEPS == 0:
            update(resources, "generator", [batch])


PROCEDURE = Procedure("gan", graph, resources, by_hand, compared=("model", "critic_optimizer", "generator_optimizer"))
