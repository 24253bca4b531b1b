"""The gradients of each step are divided by the loss of an evaluation on other data."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain import Graph
from tests.gallery.procedure import Change, Procedure, Resources

EPOCHS, BATCHES, WINDOW = 3, 5, 2


def graph() -> Graph:
    small = Graph.load("fit").overlay("val_guided").set("accumulate", every=WINDOW).set("clip", max_norm=0.5)
    return small.set("finish", after=f"{EPOCHS} epochs").set("checkpoint", every="never").set("log", every="1 steps")


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def resources() -> Resources:
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "train_data": [torch.randn(4, 3, dtype=torch.float64) for _ in range(BATCHES)],
        "guiding_data": [torch.randn(2 * size, 3, dtype=torch.float64) for size in (1, 2)],
        "training_step": training_step,
        "validation_step": training_step,
    }


def by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    for _ in range(EPOCHS):
        passes = 0
        for number, batch in enumerate(resources["train_data"]):
            (training_step(model, batch) / WINDOW).backward()
            passes += 1
            if passes == WINDOW or number == BATCHES - 1:
                model.eval()
                with torch.no_grad():
                    losses = [(float(training_step(model, other)), len(other)) for other in resources["guiding_data"]]
                model.train()
                guiding = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
                for parameter in model.parameters():
                    parameter.grad /= guiding
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                passes = 0


def with_overlay(resources: Resources, overlay: str) -> Resources:
    if overlay != "token_windows":
        return resources

    def sum_of(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, Any]:
        return {"loss": training_step(model, batch) * len(batch), "tokens": len(batch)}

    return {**resources, "training_step": sum_of}


def without(name: str) -> Change:
    return lambda graph, resources: (graph, {key: value for key, value in resources.items() if key != name})


PROCEDURE = Procedure(
    name="val_guided",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    toml_lines=15,
    kind_lines=6,
    kinds=("guide",),
    compared=("model", "optimizer"),
    with_overlay=with_overlay,
    bad={
        "no data that guides": (without("guiding_data"), "guiding_data"),
        "no model": (without("model"), "`model`"),
    },
)
