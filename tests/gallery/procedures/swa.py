"""The mean of the weights, whose batch norm statistics are computed in a pass over the data, and which is validated."""

from __future__ import annotations

import copy
from typing import Any

import torch

from graphtrain import Graph
from tests.gallery.procedure import Change, Procedure, Resources

EPOCHS, BATCHES = 3, 4


def graph() -> Graph:
    small = Graph.load("fit").overlay("swa", "update_bn").set("accumulate", every=2).set("log", every="1 steps")
    return small.set("finish", after=f"{EPOCHS} epochs").set("checkpoint", every="never")


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
    average = resources["swa_model"] = copy.deepcopy(model)
    for epoch in range(EPOCHS):
        for number, batch in enumerate(resources["train_data"]):
            (training_step(model, batch) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 1 / (epoch + 1))
    torch.optim.swa_utils.update_bn(resources["train_data"], average)


def with_overlay(resources: Resources, overlay: str) -> Resources:
    if overlay != "token_windows":
        return resources

    def sum_of(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, Any]:
        return {"loss": training_step(model, batch) * len(batch), "tokens": len(batch)}

    return {**resources, "training_step": sum_of}


def without(name: str) -> Change:
    return lambda graph, resources: (graph, {key: value for key, value in resources.items() if key != name})


def without_average(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
    return Graph.load("fit").overlay("update_bn"), resources


PROCEDURE = Procedure(
    name="swa",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    toml_lines=10,
    kind_lines=12,
    kinds=("swa", "begin_update_bn"),
    compared=("model", "swa_model", "optimizer"),
    with_overlay=with_overlay,
    bad={
        "no model": (without("model"), "`model`"),
        "nothing is averaged": (without_average, "swa_model"),
    },
)
