"""The gradients of each step are divided by the loss of an evaluation on other data."""

from __future__ import annotations

import torch

from graphtrain import Graph
from tests.procedure import Procedure, Resources, regression, short, squared_error, step, windows

EPOCHS, WINDOW = 3, 2


def graph() -> Graph:
    return short(Graph.load("fit").overlay("val_guided").set("clip", max_norm=0.5), EPOCHS, WINDOW)


def resources() -> Resources:
    return regression(5, guiding_data=[2, 4])


def by_hand(resources: Resources) -> None:
    model = resources["model"]
    for _, batch, is_end in windows(resources["train_data"], EPOCHS, WINDOW):
        (squared_error(model, batch) / WINDOW).backward()  # type: ignore[no-untyped-call]
        if not is_end:
            continue
        model.eval()
        with torch.no_grad():
            losses = [(float(squared_error(model, other)), len(other)) for other in resources["guiding_data"]]
        model.train()
        guiding = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
        for parameter in model.parameters():
            parameter.grad /= guiding
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        step(resources["optimizer"])


PROCEDURE = Procedure("val_guided", graph, resources, by_hand)
