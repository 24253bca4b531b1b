"""A function that accumulates two batches, clips, steps, clears and schedules."""

from __future__ import annotations

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler

from graphtrain import Graph
from tests.procedure import Procedure, Resources, network, numbers, short, squared_error

EPOCHS, BATCHES, WINDOW = 3, 5, 2


def graph() -> Graph:
    return short(Graph.load("manual"), EPOCHS)


def training_step(
    model: torch.nn.Module, batch: torch.Tensor, batch_index: int, optimizer: Optimizer, scheduler: LRScheduler
) -> dict[str, torch.Tensor]:
    loss = squared_error(model, batch)
    (loss / WINDOW).backward()  # type: ignore[no-untyped-call]
    if (batch_index + 1) % WINDOW == 0:  # the last batch of an epoch waits for the first of the next
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return {"loss": loss, "root": loss.detach().sqrt()}


def resources() -> Resources:
    model = network(torch.nn.Tanh(), torch.nn.Dropout(0.2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": ExponentialLR(optimizer, 0.8),
        "train_data": numbers(*[4] * BATCHES),
        "val_data": numbers(4),
        "training_step": training_step,
        "validation_step": squared_error,
    }


def by_hand(resources: Resources) -> None:
    for _ in range(EPOCHS):
        for index, batch in enumerate(resources["train_data"]):
            training_step(resources["model"], batch, index, resources["optimizer"], resources["scheduler"])


PROCEDURE = Procedure(
    "manual",
    graph,
    resources,
    by_hand,
    compared=("model", "optimizer", "scheduler"),
    one_rank_only=r"G702: `step` steps `optimizer` with gradients that were not exchanged[^!]*a kind that steps itself",
)
