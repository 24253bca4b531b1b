"""An exponential moving average of the weights, which is what is validated."""

from __future__ import annotations

import copy
from typing import Any

import torch

from graphtrain import Graph
from tests.gallery.procedure import Change, Procedure, Resources

EPOCHS, BATCHES = 3, 4


def graph() -> Graph:
    small = Graph.load("fit").overlay("ema").set("ema", decay=0.9).set("finish", after=f"{EPOCHS} epochs")
    return small.set("accumulate", every=2).set("checkpoint", every="never").set("log", every="1 steps")


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
        "val_data": [torch.randn(4, 3, dtype=torch.float64) for _ in range(2)],
        "training_step": training_step,
        "validation_step": training_step,
    }


def by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    average = resources["average"] = copy.deepcopy(model)
    batches = resources["train_data"] * EPOCHS
    for step in range(1, len(batches) // 2 + 1):
        for batch in batches[2 * step - 2 : 2 * step]:
            (training_step(model, batch) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 1 - min(0.9, step / (9 + step)))
            for mean, value in zip(average.buffers(), model.buffers(), strict=True):
                mean.copy_(value)


def with_overlay(resources: Resources, overlay: str) -> Resources:
    if overlay != "token_windows":
        return resources

    def sum_of(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, Any]:
        return {"loss": training_step(model, batch) * len(batch), "tokens": len(batch)}

    return {**resources, "training_step": sum_of}


def decay_of(value: float) -> Change:
    return lambda graph, resources: (graph.set("ema", decay=value), resources)


def without_model(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
    return graph, {name: value for name, value in resources.items() if name != "model"}


PROCEDURE = Procedure(
    name="ema",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    toml_lines=10,
    kind_lines=12,
    kinds=("ema",),
    compared=("model", "average", "optimizer"),
    refused_overlays={"ema": "ema"},
    with_overlay=with_overlay,
    bad={
        "a decay of one": (decay_of(1.5), "decay"),
        "no model": (without_model, "model"),
    },
)
