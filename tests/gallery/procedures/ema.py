"""An exponential moving average of the weights, which is what is validated."""

from __future__ import annotations

import copy

import torch

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources, regression, squared_error

EPOCHS, BATCHES = 3, 4


def graph() -> Graph:
    small = Graph.load("fit").overlay("ema").set("ema", decay=0.9).set("finish", after=f"{EPOCHS} epochs")
    return small.set("accumulate", every=2).set("checkpoint", every="never").set("log", every="1 steps")


def resources() -> Resources:
    return regression(BATCHES, val_data=[4, 4])


def by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    average = resources["average"] = copy.deepcopy(model)
    batches = resources["train_data"] * EPOCHS
    for step in range(1, len(batches) // 2 + 1):
        for batch in batches[2 * step - 2 : 2 * step]:
            (squared_error(model, batch) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 1 - min(0.9, step / (9 + step)))
            for mean, value in zip(average.buffers(), model.buffers(), strict=True):
                mean.copy_(value)


PROCEDURE = Procedure(
    name="ema",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "average", "optimizer"),
)
