"""The graph `yielding` at two ranks, with both losses in a window, and with a function that yields them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from graphtrain import Graph, Trainer
from tests.gallery.procedures import yielding


def resources(**more: Any) -> dict[str, Any]:
    supplied = yielding.resources()
    supplied["model"].body[2].p = 0.0  # each rank has random numbers of its own
    return supplied | more


def weights(supplied: dict[str, Any]) -> list[Any]:
    return [parameter.tolist() for parameter in supplied["model"].parameters()]


def trainer_of(graph: Graph, run_dir: Path | None = None, **given: Any) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=lambda line: None, **given)


def run(graph: Graph, **given: Any) -> Trainer:
    trainer = trainer_of(graph, **given)
    trainer.run()
    return trainer


def add_gradients(supplied: dict[str, Any], number: int, batches: list[torch.Tensor], divisor: int) -> None:
    parameters = supplied["optimizer"][number].param_groups[0]["params"]
    losses = [yielding.LOSSES[number](supplied["model"], batch) / divisor for batch in batches]
    parts = [torch.autograd.grad(loss, parameters) for loss in losses]
    for parameter, gradients in zip(parameters, zip(*parts, strict=True), strict=True):
        parameter.grad = torch.stack(gradients).sum(0)


def step(supplied: dict[str, Any]) -> None:
    for optimizer in supplied["optimizer"]:
        optimizer.step()
        optimizer.zero_grad()


def test_a_window_of_all_losses_steps_all_at_once() -> None:
    by_hand = resources()
    for batch in by_hand["train_data"] * yielding.EPOCHS:
        for number in range(2):
            add_gradients(by_hand, number, [batch], 2)
        step(by_hand)
    trainer = run(yielding.graph().set("accumulate", every=2), **resources())
    assert weights(trainer.resources) == weights(by_hand)
    assert trainer.read("step.steps") == yielding.EPOCHS * yielding.BATCHES
