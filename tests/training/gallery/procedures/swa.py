"""The mean of the weights, whose batch norm statistics are computed in a pass over the data, and which is validated."""

from __future__ import annotations

import copy

import torch

from graphtrain import Graph
from tests.procedure import Procedure, Resources, regression, short, squared_error, step, windows

EPOCHS = 3


def graph() -> Graph:
    return short(Graph.load("fit").overlay("swa", "update_bn"), EPOCHS, 2)


def resources() -> Resources:
    return regression(val_data=[4, 4])


def by_hand(resources: Resources) -> None:
    model = resources["model"]
    average = resources["swa_model"] = copy.deepcopy(model)
    for epoch in range(EPOCHS):
        for _, batch, is_end in windows(resources["train_data"], 1, 2):
            (squared_error(model, batch) / 2).backward()  # type: ignore[no-untyped-call]
            if is_end:
                step(resources["optimizer"])
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 1 / (epoch + 1))
    torch.optim.swa_utils.update_bn(resources["train_data"], average)


PROCEDURE = Procedure(
    "swa",
    graph,
    resources,
    by_hand,
    compared=("model", "swa_model", "optimizer"),
    bad={"nothing is averaged": (lambda it: it.but(Graph.load("fit").overlay("update_bn")), "swa_model")},
)
