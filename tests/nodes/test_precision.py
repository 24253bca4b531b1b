"""`precision` of `train_batch` and `eval_batch`: what runs under autocast, to the last bit, and what does not."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from graphtrain import Graph, GraphError, Outcome, Trainer, UsageError
from graphtrain.nodes._precision import around, autocast_of
from graphtrain.state.random import capture_random, restore_random, seed_everything
from tests.command.running import TINY, in_a_process
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


@pytest.mark.full
def test_every_choice_of_precisions_gives_other_losses() -> None:
    """What the comparison above would not notice: autocast that changes nothing."""
    for one, other in itertools.combinations(itertools.product([WHOLE, HALF], repeat=2), 2):
        assert train_by_hand(*one)[0] != train_by_hand(*other)[0], (one, other)


def test_the_default_is_32_true() -> None:
    graph = small_graph()
    said = graph.set("train_batch", precision=WHOLE).set("validate/eval_batch", precision=WHOLE)
    trainers = [small_trainer(graph=one) for one in (graph, said)]
    for trainer in trainers:
        trainer.run()
        assert trainer.read("train_batch.precision") == WHOLE
    assert trainers[0].digest() == trainers[1].digest()


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


def test_autocast_is_left_when_the_step_function_raises() -> None:
    with pytest.raises(ValueError, match="no label"):
        observed_trainer(HALF, HALF, fail=True).run()
    assert Observed.noted == [("forward", True)]
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


@pytest.mark.parametrize("path", ["train_batch", "validate/eval_batch"])
def test_an_unknown_precision_is_refused_with_the_known_ones(path: str) -> None:
    name = path.rpartition("/")[2]
    with pytest.raises(GraphError, match=f'{name}.precision: expected one of "32-true", "64-true", .*, got "16-true"'):
        small_trainer(graph=small_graph().set(path, precision="16-true"))


def test_a_device_without_autocast_is_named() -> None:
    with pytest.raises(UsageError, match='precision "bf16-mixed": there is none on the device `meta`'):
        autocast_of(HALF, torch.device("meta"))
    assert autocast_of(WHOLE, torch.device("meta")) is None


SCRIPT = TINY.replace(
    "    return model(batch)",
    '    print("train" if model.training else "val", torch.is_autocast_enabled("cpu"))\n    return model(batch)',
).replace('"training_step"', '"val_data": [torch.ones(2, 2)], "training_step"')


@pytest.mark.sweep
def test_both_are_settings_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    words = ["run", "mine.py", "batches=1", "finish.after=1 epochs"]
    both = ["train_batch.precision=bf16-mixed", "validate/eval_batch.precision=bf16-mixed"]
    good = in_a_process(*words, *both, cwd=tmp_path)
    assert (good.code, good.out.split()) == (0, ["train", "True", "val", "True"]), good
    wrong = in_a_process(*words, both[0], "validate/eval_batch.precision=half", cwd=tmp_path)
    assert wrong.code == 2
    assert (
        'eval_batch.precision: expected one of "32-true", "64-true", "bf16-true", "bf16-mixed", "16-mixed", got "half"'
        in wrong.err
    )
    assert "Traceback" not in wrong.err


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


def test_the_default_type_is_put_back_when_the_step_function_raises() -> None:
    def failing(model: nn.Module, batch: Any) -> torch.Tensor:
        raise ValueError(f"{torch.get_default_dtype()}")

    with pytest.raises(ValueError, match=r"torch\.float64"):
        true_trainer(true_graph("64-true"), training_step=failing).run()
    assert torch.get_default_dtype() == torch.float32


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


def test_an_average_that_is_supplied_keeps_its_type() -> None:
    graph = true_graph("64-true", "ema").set("validate/eval_batch", precision="32-true").set("ema", decay=0.5)
    trainer = true_trainer(graph, average=true_resources()["model"])
    trainer.run()
    model, average = (trainer.resources[name][0].weight for name in ("model", "average"))
    assert (model.dtype, average.dtype) == (torch.float64, torch.float32)
    assert torch.allclose(model, average.double(), atol=0.1) and not torch.equal(
        average, true_resources()["model"][0].weight
    )


def test_the_type_of_a_model_does_not_change_by_rewiring() -> None:
    trainer = true_trainer(true_graph("64-true"))
    with pytest.raises(UsageError, match=r'`train_batch\.precision` cannot become "bf16-true" by `rewire`'):
        trainer.rewire(true_graph("bf16-true"))
    trainer.rewire(true_graph("64-true").set("accumulate", every=1))
    trainer.run(until="1 epochs")
    assert trainer.resources["model"][0].weight.dtype == torch.float64
    with pytest.raises(UsageError, match=r'cannot become "bf16-true" by `rewire`'):
        trainer.rewire(true_graph("bf16-true"))
    further = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(further.parameters(), lr=0.1)
    trainer.rewire(true_graph("bf16-true"), model=further, optimizer=optimizer)
    trainer.run()
    assert trainer.resources["model"].weight.dtype == torch.bfloat16


@pytest.mark.full
@pytest.mark.parametrize("until", ["3 batches", "1 epochs"])
@pytest.mark.parametrize(("before", "now"), [("32-true", "bf16-true"), ("64-true", "32-true")])
def test_a_checkpoint_of_another_precision_is_refused(before: str, now: str, until: str, tmp_path: Path) -> None:
    true_trainer(true_graph(before), tmp_path).run(until=until)
    with pytest.raises(UsageError, match=f'`train_batch.precision` cannot become "{now}" at a resume') as error:
        true_trainer(true_graph(now), tmp_path).run()
    assert "--init model=" in error.value.hint


def test_a_model_that_had_the_type_already_is_resumed(tmp_path: Path) -> None:
    def in_double() -> dict[str, Any]:
        supplied = true_resources(val_data=None)
        supplied["model"].double()
        supplied["train_data"] = [{**batch, "inputs": batch["inputs"].double()} for batch in supplied["train_data"]]
        return supplied

    def run(precision: str, until: str | None) -> str:
        graph = true_graph(precision)
        trainer = Trainer(graph, run_dir=tmp_path, display=None, notify=lambda line: None, **in_double())
        torch.set_default_dtype(torch.float64)  # as a script would
        trainer.run(until=until)
        torch.set_default_dtype(torch.float32)
        return trainer.digest()

    run("32-true", "3 batches")
    assert run("64-true", None)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_a_device_without_the_type_is_named(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("no such type on this device")

    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(UsageError, match=f'precision "{precision}": there is none on the device `cpu`'):
        around(precision, torch.device("cpu"))


def test_a_device_on_which_torch_warns_and_computes_in_float32_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: Any) -> None:
        warnings.warn("the target dtype is not supported. Disabling autocast.", stacklevel=1)

    monkeypatch.setattr(torch, "autocast", warn)
    with pytest.raises(UsageError, match='precision "16-mixed": there is none on the device `cpu`'):
        around("16-mixed", torch.device("cpu"))


def test_a_validation_is_in_the_precision_of_the_training() -> None:
    training = graph_with(HALF, HALF)
    plain = small_graph(EVERY, float("inf"), f"{EPOCHS} epochs").set("validate", every="1 epochs")
    inherited = plain.set("train_batch", precision=HALF)
    losses: dict[str, list[float]] = {"set": [], "inherited": []}
    for name, graph in (("set", training), ("inherited", inherited)):
        small_trainer(optimizer="sgd", graph=graph, losses=losses[name]).run()
    assert losses["inherited"] == losses["set"]
