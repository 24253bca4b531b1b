"""A new head is trained for an epoch; then the body under it as well, by an optimizer of its own."""

from __future__ import annotations

import torch

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources

EPOCHS, BATCHES, WINDOW = 3, 5, 2


def graph() -> Graph:
    small = Graph.load("fit").overlay("unfreeze").set("accumulate", every=WINDOW).set("clip", max_norm=1.0)
    return small.set("finish", after=f"{EPOCHS} epochs").set("checkpoint", every="never").set("log", every="1 steps")


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model["head"](model["body"](batch)) - batch.sum(1, keepdim=True)).square().mean()


def resources() -> Resources:
    torch.manual_seed(1)
    body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2))
    model = torch.nn.ModuleDict({"body": body, "head": torch.nn.Linear(4, 1)}).double()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model["head"].parameters(), lr=0.05),
        "body_optimizer": torch.optim.AdamW(model["body"].parameters(), lr=0.01),
        "train_data": [torch.randn(4, 3, dtype=torch.float64) for _ in range(BATCHES)],
        "training_step": training_step,
    }


def by_hand(resources: Resources) -> None:
    model = resources["model"]
    body, head = model["body"], model["head"]
    head_optimizer, body_optimizer = resources["optimizer"], resources["body_optimizer"]
    for epoch in range(EPOCHS):
        body.requires_grad_(epoch >= 1)
        passes = 0
        for number, batch in enumerate(resources["train_data"]):
            (training_step(model, batch) / WINDOW).backward()
            passes += 1
            if passes == WINDOW or number == BATCHES - 1:
                torch.nn.utils.clip_grad_norm_([*head.parameters(), *body.parameters()], 1.0)
                for optimizer in (head_optimizer, body_optimizer):
                    optimizer.step()
                    optimizer.zero_grad()
                passes = 0


def trained_at_first(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
    return graph.set("train_batch", reads={"unfrozen": "next_batch.epoch"}), resources


PROCEDURE = Procedure(
    name="unfreeze",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer", "body_optimizer"),
    bad={
        "nothing is trained at first": (trained_at_first, "unfrozen"),
    },
)
