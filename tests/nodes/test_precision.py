"""`precision` of `train_batch` and `eval_batch`: what runs under autocast, to the last bit, and what does not."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from graphtrain import Factory, Graph, GraphError, Outcome, Trainer, UsageError
from graphtrain.nodes._precision import around, autocast_of
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


# ---- precisions of the whole model

TRUE = {"bf16-true": torch.bfloat16, "64-true": torch.float64}


def step_with_new_tensors(model: nn.Module, batch: Any) -> torch.Tensor:
    """A step function that makes a tensor of its own, and has labels that stay integers."""
    inputs, targets = batch["inputs"], batch["targets"]
    assert targets.dtype == torch.int64
    return nn.functional.cross_entropy(model(inputs) + torch.full((3,), 0.3), targets)


def true_resources(**others: Any) -> dict[str, Any]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    batches = [{"inputs": torch.randn(4, 6), "targets": torch.randint(0, 3, (4,))} for _ in range(5)]
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=0.02),
        "train_data": batches,
        "val_data": batches[:2],
        "training_step": step_with_new_tensors,
        **others,
    }


def true_graph(precision: str, *overlays: str) -> Graph:
    graph = Graph.load("fit").overlay(*overlays).set("accumulate", every=2).set("finish", after="3 epochs")
    graph = graph.set("train_batch", precision=precision).set("validate/eval_batch", precision=precision)
    return graph.set("log", every="never").set("checkpoint", every="never")


def true_trainer(graph: Graph, run_dir: Path | None = None, **others: Any) -> Trainer:
    return Trainer(graph, run_dir=run_dir, seed=0, display=None, notify=lambda line: None, **true_resources(**others))


def true_by_hand(precision: str) -> tuple[dict[str, Any], list[float]]:
    supplied, losses = true_resources(), []
    model, optimizer, dtype = supplied["model"], supplied["optimizer"], TRUE[precision]
    model.to(dtype)
    seed_everything(0)

    def computed(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        torch.set_default_dtype(dtype)
        loss = step_with_new_tensors(model, {**batch, "inputs": batch["inputs"].to(dtype)})
        torch.set_default_dtype(torch.float32)
        return loss

    for _ in range(3):
        for number, batch in enumerate(supplied["train_data"], start=1):
            (computed(batch) / 2).backward()  # type: ignore[no-untyped-call]
            if number % 2 == 0 or number == 5:
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            total = sum(computed(batch).item() * 4 for batch in supplied["val_data"])
        losses.append(total / 8)
        model.train()
    return supplied, losses


@pytest.mark.parametrize("precision", TRUE)
def test_a_precision_of_the_model_equals_the_loop_written_by_hand(precision: str) -> None:
    torch.set_num_threads(1)
    reference, losses = true_by_hand(precision)
    trainer = true_trainer(true_graph(precision))
    trainer.run()
    assert_same(trainer.resources["model"].state_dict(), reference["model"].state_dict())
    assert_same(trainer.resources["optimizer"].state_dict(), reference["optimizer"].state_dict())
    assert [row["val/loss"] for row in trainer.metrics if "val/loss" in row] == losses
    assert {tensor.dtype for tensor in trainer.resources["model"].parameters()} == {TRUE[precision]}
    assert torch.get_default_dtype() == torch.float32
    assert trainer.read("batch")["inputs"].dtype == torch.float32, "the batch in the slot is as the data gave it"


@pytest.mark.full
@pytest.mark.parametrize("precision", TRUE)
def test_a_cut_run_in_it_equals_one_never_cut(precision: str, tmp_path: Path) -> None:
    graph = true_graph(precision, "ema")
    whole = true_trainer(graph)
    whole.run()
    for amount in ("3 batches", "7 batches"):
        true_trainer(graph, tmp_path).run(until=amount)
    cut = true_trainer(graph, tmp_path)
    cut.run()
    assert cut.digest() == whole.digest()
    assert cut.resources["average"][0].weight.dtype == TRUE[precision]


def test_a_model_that_is_trained_and_evaluated_in_different_types_is_refused() -> None:
    graph = true_graph("bf16-true").set("validate/eval_batch", precision="32-true")
    with pytest.raises(GraphError, match='computes `model` in "bf16-true", and `validate/eval_batch` in "32-true"'):
        true_trainer(graph)
    trainer = true_trainer(graph, val_data=None)  # nothing is evaluated
    trainer.run()
    assert trainer.resources["model"][0].weight.dtype == torch.bfloat16


@pytest.mark.parametrize(("training", "validation"), [("64-true", "32-true"), ("32-true", "64-true")])
def test_a_copy_of_a_model_is_computed_in_the_type_of_the_model(training: str, validation: str) -> None:
    graph = true_graph(training, "ema").set("validate/eval_batch", precision=validation)
    names = ["`train_batch` computes `model`", "`validate/eval_batch` computes `average`, a copy of `model`,"]
    doubled, other = names if training == "64-true" else reversed(names)
    other = other.replace(" computes", "")
    with pytest.raises(GraphError, match=f'{doubled} in "64-true", and {other} in "32-true"'):
        true_trainer(graph)
    assert true_trainer(graph, val_data=None).run() is Outcome.FINISHED, "nothing is evaluated"
    trainer = true_trainer(true_graph("64-true", "ema"))
    with pytest.raises(UsageError, match="a copy of `model`"):
        trainer.rewire(graph)


@pytest.mark.full
@pytest.mark.parametrize("until", ["3 batches", "1 epochs"])
@pytest.mark.parametrize(("before", "now"), [("32-true", "bf16-true"), ("64-true", "32-true")])
def test_a_checkpoint_of_another_precision_is_refused(before: str, now: str, until: str, tmp_path: Path) -> None:
    true_trainer(true_graph(before), tmp_path).run(until=until)
    with pytest.raises(UsageError, match=f'`train_batch.precision` cannot become "{now}" at a resume') as error:
        true_trainer(true_graph(now), tmp_path).run()
    assert "--init model=" in error.value.hint


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_a_device_without_the_type_is_named(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("no such type on this device")

    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(UsageError, match=f'precision "{precision}": there is none on the device `cpu`'):
        around(precision, torch.device("cpu"))


def test_a_model_that_is_made_again_has_the_type_too() -> None:
    graph = Graph.load("fit").set("train_batch", precision="64-true").set("finish", after="2 epochs")
    graph = graph.insert("renew", after="begin_epoch", resource="model")
    supplied = true_resources(val_data=None)
    del supplied["model"], supplied["optimizer"]
    trainer = Trainer(
        graph,
        display=None,
        notify=lambda line: None,
        model=Factory(lambda: nn.Linear(6, 3)),
        optimizer=Factory(lambda model: torch.optim.SGD(model.parameters(), lr=0.1)),
        **supplied,
    )
    trainer.run()
    assert trainer.read("renew.runs") == 2
    assert trainer.resources["model"].weight.dtype == torch.float64
