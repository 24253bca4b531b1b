"""`precision` of `train_batch` and `eval_batch`: what runs under autocast, to the last bit, and what does not."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from graphtrain import Graph, Trainer, UsageError
from graphtrain.nodes._precision import autocast_of
from graphtrain.state.random import capture_random, restore_random, seed_everything
from tests.program.small_run import (
    Augmented,
    make_loader,
    make_model,
    make_optimizer,
    small_graph,
    small_trainer,
    training_step,
)
from tests.program.test_by_hand import assert_same

EPOCHS = 2
EVERY = 2
WHOLE, HALF = "32-true", "bf16-mixed"


def autocast(precision: str) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if precision == HALF else contextlib.nullcontext()


def train_by_hand(training: str, validation: str) -> tuple[list[float], Any, Any]:
    """The reference: losses of all batches in order, final weights, final optimizer state."""
    torch.set_num_threads(1)
    seed_everything(7)
    model = make_model()
    optimizer, _ = make_optimizer("sgd", model)
    data = Augmented()
    train_data, val_data = make_loader("Loader", data), DataLoader(data, 4)
    train_data.seed = 11
    losses: list[float] = []
    seed_everything(11)
    for _ in range(EPOCHS):
        for number, batch in enumerate(train_data, start=1):
            with autocast(training):
                loss = training_step(model, batch)
            losses.append(loss.item())
            (loss / EVERY).backward()
            if number % EVERY == 0 or number == len(train_data):
                optimizer.step()
                optimizer.zero_grad()
        random = capture_random()
        seed_everything(11)
        model.eval()
        for batch in val_data:
            with torch.no_grad(), autocast(validation):
                losses.append(training_step(model, batch).item())
        model.train()
        restore_random(random)
    return losses, model.state_dict(), optimizer.state_dict()


def graph_with(training: str, validation: str) -> Graph:
    return (
        small_graph(EVERY, float("inf"), f"{EPOCHS} epochs")
        .set("validate", every="1 epochs")
        .set("train_batch", precision=training)
        .set("validate/eval_batch", precision=validation)
    )


@pytest.mark.parametrize("validation", [WHOLE, HALF])
@pytest.mark.parametrize("training", [WHOLE, HALF])
def test_the_graph_equals_the_loop_written_by_hand(training: str, validation: str) -> None:
    losses, weights, optimizer_state = train_by_hand(training, validation)
    seen: list[float] = []
    trainer = small_trainer(optimizer="sgd", graph=graph_with(training, validation), losses=seen)
    trainer.run()
    assert seen == losses
    assert_same(trainer.resources["model"].state_dict(), weights)
    assert_same(trainer.resources["optimizer"].state_dict(), optimizer_state)
    assert all(one.dtype == torch.float32 for one in trainer.resources["model"].parameters())


class Observed(torch.autograd.Function):
    """The identity, which notes whether autocast is on in its forward and in its backward."""

    noted: list[tuple[str, bool]]

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        Observed.noted.append(("forward", torch.is_autocast_enabled("cpu")))
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        Observed.noted.append(("backward", torch.is_autocast_enabled("cpu")))
        return gradients[0]


def observed_trainer(training: str, validation: str, *, fail: bool = False) -> Trainer:
    Observed.noted = []

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = Observed.apply(model(batch)).float().square().mean()
        if fail:
            raise ValueError("no label")
        return loss

    model = nn.Linear(2, 1)
    graph = Graph.load("fit").set("finish", after="1 epochs").set("train_batch", precision=training)
    return Trainer(
        graph.set("validate/eval_batch", precision=validation),
        seed=0,
        device="cpu",
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(3, 2)],
        val_data=[torch.ones(3, 2)],
        training_step=step,
    )


@pytest.mark.parametrize("validation", [WHOLE, HALF])
@pytest.mark.parametrize("training", [WHOLE, HALF])
def test_only_the_step_function_runs_under_autocast(training: str, validation: str) -> None:
    observed_trainer(training, validation).run()
    assert Observed.noted == [("forward", training == HALF), ("backward", False), ("forward", validation == HALF)]
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.full
def test_a_cut_run_equals_one_never_cut(tmp_path: Path) -> None:
    graph = graph_with(HALF, HALF)
    whole = small_trainer(tmp_path / "whole", graph=graph)
    whole.run()
    for amount in ("3 batches", "8 batches"):
        small_trainer(tmp_path / "cut", graph=graph).run(until=amount)
    cut = small_trainer(tmp_path / "cut", graph=graph)
    cut.run()
    assert cut.digest() == whole.digest()


def test_a_device_without_autocast_is_named() -> None:
    with pytest.raises(UsageError, match='precision "bf16-mixed": there is none on the device `meta`'):
        autocast_of(HALF, torch.device("meta"))
    assert autocast_of(WHOLE, torch.device("meta")) is None
