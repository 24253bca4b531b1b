"""A spike of the loss sends the run back to its last checkpoint, and the batches that led there are left out."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from graphtrain import Graph, Loader
from tests.procedure import Procedure, Resources, momentum, network, step

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
    model = network()
    weights = torch.ones(4 * BATCHES, dtype=torch.float64)
    weights[BAD] = 1e3
    data = torch.utils.data.TensorDataset(torch.randn(4 * BATCHES, 3, dtype=torch.float64), weights)
    return {
        "model": model,
        "optimizer": momentum(model),
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
                torch.set_rng_state(saved["random"])
                fetched, passes, last_saved = saved["fetched"], saved["passes"], saved["last_saved"]
                continue
        if passes == WINDOW or (passes and index == BATCHES - 1):
            step(optimizer)
            passes = 0
        if fetched // 4 > last_saved // 4:
            last_saved = fetched
            saved = {
                **copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()}),
                "gradients": [None if each.grad is None else each.grad.clone() for each in parameters],
                "random": torch.get_rng_state(),
                "fetched": fetched,
                "passes": passes,
                "last_saved": last_saved,
            }
    assert skips, "there was a spike"


PROCEDURE = Procedure(
    "rollback",
    graph,
    resources,
    by_hand,
    bad={
        "no checkpoint to go back to": (lambda it: it, "run directory"),
        "no node that saves": (lambda it: it.but(it.graph.remove("checkpoint")), "no node saves one"),
    },
)
