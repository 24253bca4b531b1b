"""A spike of the loss sends the run back to its last checkpoint, and the batches that led there are left out."""

from __future__ import annotations

import math
from typing import Any

import torch

from graphtrain import Graph, Loader
from graphtrain.state.random import capture_random, restore_random
from tests.gallery.procedure import Procedure, Resources

EPOCHS, BATCHES, WINDOW, SKIP, WARMUP = 3, 5, 2, 2, 3
BAD = 7  # a sample whose loss is a spike


def graph() -> Graph:
    small = Graph.load("fit").overlay("rollback").set("rollback", deviations=4.0, warmup=WARMUP, skip=SKIP)
    small = small.set("finish", after=f"{EPOCHS} epochs").set("accumulate", every=WINDOW).set("log", every="1 steps")
    return small.set("checkpoint", every="4 batches", keep=1)


def training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    inputs, weights = batch
    return ((model(inputs) - inputs.sum(1, keepdim=True)).square().mean(1) * weights).mean()


def resources() -> Resources:
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    weights = torch.ones(4 * BATCHES, dtype=torch.float64)
    weights[BAD] = 1e3
    data = torch.utils.data.TensorDataset(torch.randn(4 * BATCHES, 3, dtype=torch.float64), weights)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "train_data": Loader(data, batch_size=4, shuffle=True),
        "training_step": training_step,
    }


def by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    parameters = list(model.parameters())
    epochs: list[list[Any]] = []
    skips: set[tuple[int, int]] = set()
    mean, variance, losses = 0.0, 0.0, 0
    saved: dict[str, Any] = {}
    fetched = passes = last_saved = 0
    while fetched < EPOCHS * BATCHES:
        epoch, index = divmod(fetched, BATCHES)
        if epoch == len(epochs):  # the same order again after going back
            epochs.append(list(resources["train_data"]))
        batch = epochs[epoch][index]
        fetched += 1
        if (epoch, index) not in skips:
            loss = training_step(model, batch)
            (loss / WINDOW).backward()
            passes += 1
            value = float(loss.detach())
            limit = mean + 4.0 * math.sqrt(variance) if losses >= WARMUP else math.inf
            losses += 1
            weight, difference = max(0.01, 1 / losses), min(value, limit) - mean
            mean += weight * difference
            variance = (1 - weight) * (variance + weight * difference**2)
            if value > limit and saved:
                skips |= {(epoch, number) for number in range(max(index - SKIP + 1, 0), index + 1)}
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                for parameter, gradient in zip(parameters, saved["gradients"], strict=True):
                    parameter.grad = None if gradient is None else gradient.clone()
                restore_random(saved["random"])
                fetched, passes, last_saved = saved["fetched"], saved["passes"], saved["last_saved"]
                continue
        if passes == WINDOW or (passes and index == BATCHES - 1):
            optimizer.step()
            optimizer.zero_grad()
            passes = 0
        if fetched // 4 > last_saved // 4:
            last_saved = fetched
            saved = {
                "model": {name: value.clone() for name, value in model.state_dict().items()},
                "optimizer": copied(optimizer.state_dict()),
                "gradients": [None if each.grad is None else each.grad.clone() for each in parameters],
                "random": capture_random(),
                "fetched": fetched,
                "passes": passes,
                "last_saved": last_saved,
            }
    assert skips, "there was a spike"


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: copied(inner) for name, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def without_checkpoints(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
    return graph.remove("checkpoint"), resources


PROCEDURE = Procedure(
    name="rollback",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer"),
    bad={
        "no checkpoint to go back to": (lambda graph, resources: (graph, resources), "run directory"),
        "no node that saves": (without_checkpoints, "no node saves one"),
    },
)
