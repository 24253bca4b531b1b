"""The mean of the weights, whose batch norm statistics are computed in a pass over the data, and which is validated."""

from __future__ import annotations

import copy

import torch

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources, regression, squared_error

EPOCHS, BATCHES = 3, 4


def graph() -> Graph:
    small = Graph.load("fit").overlay("swa", "update_bn").set("accumulate", every=2).set("log", every="1 steps")
    return small.set("finish", after=f"{EPOCHS} epochs").set("checkpoint", every="never")


def resources() -> Resources:
    return regression(BATCHES, val_data=[4, 4])


def by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    average = resources["swa_model"] = copy.deepcopy(model)
    for epoch in range(EPOCHS):
        for number, batch in enumerate(resources["train_data"]):
            (squared_error(model, batch) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 1 / (epoch + 1))
    torch.optim.swa_utils.update_bn(resources["train_data"], average)


def without_average(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
    return Graph.load("fit").overlay("update_bn"), resources


PROCEDURE = Procedure(
    name="swa",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "swa_model", "optimizer"),
    bad={
        "nothing is averaged": (without_average, "swa_model"),
    },
)
