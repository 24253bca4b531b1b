"""The gradients of each step are divided by the loss of an evaluation on other data."""

from __future__ import annotations

import torch

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources, regression, squared_error

EPOCHS, BATCHES, WINDOW = 3, 5, 2


def graph() -> Graph:
    small = Graph.load("fit").overlay("val_guided").set("accumulate", every=WINDOW).set("clip", max_norm=0.5)
    return small.set("finish", after=f"{EPOCHS} epochs").set("checkpoint", every="never").set("log", every="1 steps")


def resources() -> Resources:
    return regression(BATCHES, guiding_data=[2, 4])


def by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    for _ in range(EPOCHS):
        passes = 0
        for number, batch in enumerate(resources["train_data"]):
            (squared_error(model, batch) / WINDOW).backward()
            passes += 1
            if passes == WINDOW or number == BATCHES - 1:
                model.eval()
                with torch.no_grad():
                    losses = [(float(squared_error(model, other)), len(other)) for other in resources["guiding_data"]]
                model.train()
                guiding = sum(loss * size for loss, size in losses) / sum(size for _, size in losses)
                for parameter in model.parameters():
                    parameter.grad /= guiding
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                passes = 0


PROCEDURE = Procedure(
    name="val_guided",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer"),
)
