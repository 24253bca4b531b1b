"""Gradients are taken at the worst weights nearby; the window that is open keeps its own."""

from __future__ import annotations

import torch

from graphtrain import Graph
from tests.procedure import Procedure, Resources, network, regression, short, step, windows

EPOCHS, WINDOW, RADIUS = 3, 2, 0.1


def graph() -> Graph:
    return short(Graph.load("fit").overlay("sam").set("train_batch", radius=RADIUS), EPOCHS, WINDOW)


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    error = model(batch) - batch.sum(1, keepdim=True)
    return {"loss": error.square().mean(), "error": error.abs().mean()}


def resources() -> Resources:
    model = network()
    model[1].bias.requires_grad_(False)  # type: ignore[operator, union-attr]
    return {**regression(5, model), "training_step": training_step}


def by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    trained = [each for each in model.parameters() if each.requires_grad]
    for _, batch, is_end in windows(resources["train_data"], EPOCHS, WINDOW):
        window = [None if each.grad is None else each.grad.clone() for each in trained]
        optimizer.zero_grad()
        training_step(model, batch)["loss"].backward()  # type: ignore[no-untyped-call]
        gradients = [each.grad.clone() for each in trained]
        length = torch.stack([gradient.norm() for gradient in gradients]).norm() + 1e-12
        before = [each.detach().clone() for each in trained]
        with torch.no_grad():
            for each, gradient in zip(trained, gradients, strict=True):
                each += gradient * (RADIUS / length)
        for each, kept in zip(trained, window, strict=True):
            each.grad = kept
        (training_step(model, batch)["loss"] / WINDOW).backward()
        with torch.no_grad():
            for each, value in zip(trained, before, strict=True):
                each.copy_(value)
        if is_end:
            step(optimizer)


PROCEDURE = Procedure("sam", graph, resources, by_hand)
