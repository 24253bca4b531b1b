"""Gradients are taken at the worst weights nearby; the window that is open keeps its own."""

from __future__ import annotations

import torch

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources

EPOCHS, BATCHES, WINDOW, RADIUS = 3, 5, 2, 0.1


def graph() -> Graph:
    small = Graph.load("fit").overlay("sam").set("train_batch", radius=RADIUS).set("accumulate", every=WINDOW)
    return small.set("finish", after=f"{EPOCHS} epochs").set("checkpoint", every="never").set("log", every="1 steps")


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    error = model(batch) - batch.sum(1, keepdim=True)
    return {"loss": error.square().mean(), "error": error.abs().mean()}


def resources() -> Resources:
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    model[1].bias.requires_grad_(False)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "train_data": [torch.randn(4, 3, dtype=torch.float64) for _ in range(BATCHES)],
        "training_step": training_step,
    }


def by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    trained = [each for each in model.parameters() if each.requires_grad]
    for _ in range(EPOCHS):
        passes = 0
        for number, batch in enumerate(resources["train_data"]):
            window = [None if each.grad is None else each.grad.clone() for each in trained]
            optimizer.zero_grad()
            training_step(model, batch)["loss"].backward()
            gradients = [each.grad.clone() for each in trained]
            length = torch.stack([gradient.norm() for gradient in gradients]).norm() + 1e-12
            before = [each.detach().clone() for each in trained]
            with torch.no_grad():
                for each, gradient in zip(trained, gradients, strict=True):
                    each += gradient * (RADIUS / length)
            for each, gradient in zip(trained, window, strict=True):
                each.grad = gradient
            (training_step(model, batch)["loss"] / WINDOW).backward()
            with torch.no_grad():
                for each, value in zip(trained, before, strict=True):
                    each.copy_(value)
            passes += 1
            if passes == WINDOW or number == BATCHES - 1:
                optimizer.step()
                optimizer.zero_grad()
                passes = 0


PROCEDURE = Procedure(
    name="sam",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer"),
)
