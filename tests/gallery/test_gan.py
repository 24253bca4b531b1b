"""The graph `gan` at two ranks, with windows, with a frequency that varies, and counted ahead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain import Graph, PlannedRun, Trainer
from tests.gallery.procedures import gan

MORE_AT_FIRST = "3 if generator_step.steps < 1 else 2"


def critic_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Without random numbers, of which each rank has its own."""
    return model["critic"](model["generator"](batch[:, :2])).square().mean() + (1 - model["critic"](batch)).abs().mean()


def generator_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (1 - model["critic"](model["generator"](batch[:, :2]))).square().mean()


def resources() -> dict[str, Any]:
    supplied = gan.resources() | {"critic_loss": critic_loss, "generator_loss": generator_loss}
    supplied["model"]["critic"][2].p = 0.0
    return supplied


def weights(supplied: dict[str, Any]) -> list[Any]:
    return [parameter.tolist() for parameter in supplied["model"].parameters()]


def by_graph(graph: Graph) -> Trainer:
    trainer = Trainer(graph, seed=0, display=None, notify=lambda line: None, **resources())
    trainer.run()
    return trainer


def update(supplied: dict[str, Any], part: str, batches: list[torch.Tensor], divisor: int) -> None:
    """One step with the sum of the gradients of some batches, each divided."""
    parameters = [*supplied["model"][part].parameters()]
    loss_of = critic_loss if part == "critic" else generator_loss
    parts = [torch.autograd.grad(loss_of(supplied["model"], batch) / divisor, parameters) for batch in batches]
    for parameter, gradients in zip(parameters, zip(*parts, strict=True), strict=True):
        parameter.grad = torch.stack(gradients).sum(0)
    supplied[f"{part}_optimizer"].step()


@pytest.mark.parametrize(("window", "every"), [(2, "2"), (1, MORE_AT_FIRST)])
def test_windows_of_the_critic_and_a_frequency_that_varies_train_as_the_loop_by_hand(window: int, every: str) -> None:
    graph = gan.graph().set("accumulate", every=window).set("alternate", reads={"every": every})
    by_hand = resources()
    turn = generator_steps = 0
    for _ in range(gan.EPOCHS):
        for first in range(0, gan.BATCHES, window):
            batches, turn = by_hand["train_data"][first : first + window], turn + 1
            update(by_hand, "critic", batches, window)
            if turn % (3 if every == MORE_AT_FIRST and generator_steps < 1 else 2) == 0:
                update(by_hand, "generator", batches[-1:], 1)
                generator_steps += 1
    trainer = by_graph(graph)
    assert weights(trainer.resources) == weights(by_hand)
    planned = PlannedRun(graph)
    steps = trainer.read("step.steps"), trainer.read("generator_step.steps")
    assert steps == (turn, generator_steps)
    assert planned.steps(by_hand["train_data"]) == turn
    assert planned.steps(by_hand["train_data"], node="generator_step") == generator_steps


def test_each_is_trained_without_gradients_of_the_other() -> None:
    """Without `only_own` the critic steps with what the loss of the generator left it."""
    own = by_graph(gan.graph()).resources
    assert all(parameter.grad is None for parameter in own["model"].parameters())
    assert weights(by_graph(gan.graph().set("generate", only_own=False)).resources) != weights(own)
