"""A new head is trained for an epoch; then the body under it as well, by an optimizer of its own."""

from __future__ import annotations

import torch

from graphtrain import Graph
from tests.procedure import Procedure, Resources, numbers, short, step, windows

EPOCHS, WINDOW = 3, 2


def graph() -> Graph:
    return short(Graph.load("fit").overlay("unfreeze").set("clip", max_norm=1.0), EPOCHS, WINDOW)


def training_step(model: torch.nn.ModuleDict, batch: torch.Tensor) -> torch.Tensor:
    error: torch.Tensor = model["head"](model["body"](batch)) - batch.sum(1, keepdim=True)
    return error.square().mean()


def resources() -> Resources:
    torch.manual_seed(1)
    body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2))
    model = torch.nn.ModuleDict({"body": body, "head": torch.nn.Linear(4, 1)}).double()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model["head"].parameters(), lr=0.05),
        "body_optimizer": torch.optim.AdamW(model["body"].parameters(), lr=0.01),
        "train_data": numbers(4, 4, 4, 4, 4),
        "training_step": training_step,
    }


def by_hand(resources: Resources) -> None:
    model = resources["model"]
    for epoch, batch, is_end in windows(resources["train_data"], EPOCHS, WINDOW):
        model["body"].requires_grad_(epoch >= 1)
        (training_step(model, batch) / WINDOW).backward()  # type: ignore[no-untyped-call]
        if is_end:
            torch.nn.utils.clip_grad_norm_([*model["head"].parameters(), *model["body"].parameters()], 1.0)
            step(resources["optimizer"], resources["body_optimizer"])


PROCEDURE = Procedure(
    "unfreeze",
    graph,
    resources,
    by_hand,
    compared=("model", "optimizer", "body_optimizer"),
    bad={
        "nothing is trained at first": (
            lambda it: it.but(it.graph.set("train_batch", reads={"unfrozen": "next_batch.epoch"})),
            "unfrozen",
        )
    },
)
