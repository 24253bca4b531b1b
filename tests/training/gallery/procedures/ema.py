"""An exponential moving average of the weights, which is what is validated."""

from __future__ import annotations

import copy

import torch

from graphtrain import Graph
from tests.procedure import Procedure, Resources, regression, short, squared_error, step, windows

EPOCHS = 3


def graph() -> Graph:
    return short(Graph.load("fit").overlay("ema").set("ema", decay=0.9), EPOCHS, 2)


def resources() -> Resources:
    return regression(val_data=[4, 4])


def by_hand(resources: Resources) -> None:
    model, steps = resources["model"], 0
    average = resources["average"] = copy.deepcopy(model)
    for _, batch, is_end in windows(resources["train_data"], EPOCHS, 2):
        (squared_error(model, batch) / 2).backward()  # type: ignore[no-untyped-call]
        if not is_end:
            continue
        step(resources["optimizer"])
        steps += 1
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 1 - min(0.9, steps / (9 + steps)))
            for mean, value in zip(average.buffers(), model.buffers(), strict=True):
                mean.copy_(value)


PROCEDURE = Procedure("ema", graph, resources, by_hand, compared=("model", "average", "optimizer"))
