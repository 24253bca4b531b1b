"""A function that accumulates two batches, clips, steps, clears and schedules."""

from __future__ import annotations

import torch

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources

EPOCHS, BATCHES, WINDOW = 3, 5, 2

Optimizer = torch.optim.Optimizer


def graph() -> Graph:
    small = Graph.load("manual").set("finish", after=f"{EPOCHS} epochs")
    return small.set("checkpoint", every="never").set("log", every="1 steps")


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def training_step(
    model: torch.nn.Module,
    batch: torch.Tensor,
    batch_index: int,
    optimizer: Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
) -> dict[str, torch.Tensor]:
    loss = loss_of(model, batch)
    (loss / WINDOW).backward()  # type: ignore[no-untyped-call]
    if (batch_index + 1) % WINDOW == 0:  # the last batch of an epoch waits for the first of the next
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return {"loss": loss, "root": loss.detach().sqrt()}


def resources() -> Resources:
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8),
        "train_data": [torch.randn(4, 3, dtype=torch.float64) for _ in range(BATCHES)],
        "val_data": [torch.randn(4, 3, dtype=torch.float64)],
        "training_step": training_step,
        "validation_step": loss_of,
    }


def by_hand(resources: Resources) -> None:
    for _ in range(EPOCHS):
        for index, batch in enumerate(resources["train_data"]):
            training_step(resources["model"], batch, index, resources["optimizer"], resources["scheduler"])


PROCEDURE = Procedure(
    name="manual",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer", "scheduler"),
    one_rank_only=r"G702: `step` steps `optimizer` with gradients that were not exchanged[^!]*within the same visit",
)
