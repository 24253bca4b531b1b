"""Where memory runs out: what is reported, and batches that are computed in parts, against larger windows by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import STOP, Graph, GraphError, Outcome, Trainer
from graphtrain.state.random import seed_everything
from tests.ranks.fake_ranks import run_ranks

BATCHES, EPOCHS, SAMPLES = 5, 2, 8


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Backward(torch.autograd.Function):
    """The identity, whose backward pass needs more memory than there is for more than so many samples."""

    most = SAMPLES

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        if len(gradients[0]) > Backward.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return gradients[0]


def step(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """It runs out of memory in backward, when some gradients are added already."""
    hidden = Backward.apply(model[0](batch["inputs"]))
    outputs = model[2](model[1](hidden))
    loss = (outputs - batch["targets"]).square().mean()
    return {"loss": loss, "largest": outputs.abs().mean()}


def resources(**others: Any) -> dict[str, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.25), nn.Linear(6, 1))
    inputs = [torch.randn(SAMPLES, 4) for _ in range(BATCHES)]
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "train_data": [{"inputs": each, "targets": each.sum(1, keepdim=True)} for each in inputs],
        "training_step": step,
        **others,
    }


def graph_of(window: int = 2, action: str = "halve") -> Graph:
    graph = Graph.load("fit").set("train_batch", on_out_of_memory=action).set("accumulate", every=window)
    return graph.set("finish", after=f"{EPOCHS} epochs").set("log", every="1 steps").set("checkpoint", every="never")


def trainer_of(graph: Graph, run_dir: Path | None = None, said: list[str] | None = None, **others: Any) -> Trainer:
    notify = (lambda line: None) if said is None else said.append
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=notify, **resources(**others))


def by_hand(window: int, parts: int) -> tuple[list[Any], list[float]]:
    """A loop whose windows are as many times larger as its batches are smaller."""
    supplied, losses = resources(), []
    model, optimizer = supplied["model"], supplied["optimizer"]
    seed_everything(0)
    for _ in range(EPOCHS):
        for number, batch in enumerate(supplied["train_data"], start=1):
            for piece in zip(*(tensor.chunk(parts) for tensor in batch.values()), strict=True):
                loss = step(model, dict(zip(batch, piece, strict=True)))["loss"]
                (loss / (window * parts)).backward()
                losses.append(loss.item())
            if number % window == 0 or number == BATCHES:
                optimizer.step()
                optimizer.zero_grad()
    return [weight.tolist() for weight in model.parameters()], losses


def weights_of(trainer: Trainer) -> list[Any]:
    return [weight.tolist() for weight in trainer.resources["model"].parameters()]


@pytest.mark.first(4)
@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_batch_in_parts_is_a_larger_window(window: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backward, "most", SAMPLES // parts)
    said: list[str] = []
    trainer = trainer_of(graph_of(window), said=said)
    assert trainer.run() is Outcome.FINISHED
    weights, losses = by_hand(window, parts)
    assert weights_of(trainer) == weights
    assert trainer.read("train_batch.parts") == parts
    assert f"memory ran out: each batch is computed in {parts} parts from now on" in said
    epoch = [row for row in trainer.metrics if "epoch/loss" in row]
    half = len(losses) // EPOCHS
    assert [row["epoch/loss"] for row in epoch] == pytest.approx([sum(losses[:half]) / half, sum(losses[half:]) / half])
    assert "epoch/largest" in epoch[0]


def test_other_parts_and_windows_would_train_something_else() -> None:
    """What the comparison above would not notice."""
    ends = [by_hand(window, parts)[0] for window, parts in ((1, 1), (1, 2), (2, 1), (2, 2))]
    assert all(one != other for index, one in enumerate(ends) for other in ends[:index])


def test_memory_that_runs_out_later_leaves_the_window_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a window, with gradients that are partly added: as if that batch had been in parts at once."""

    def run(action: str) -> Trainer:
        trainer = trainer_of(graph_of(4))
        trainer.run(until="2 batches")
        if action == "parts":
            trainer._session.compiled.program.by_path["train_batch"].instance.parts = 2
        else:
            monkeypatch.setattr(Backward, "most", SAMPLES // 2)
        trainer.run()
        monkeypatch.setattr(Backward, "most", SAMPLES)
        return trainer

    assert weights_of(run("parts")) == weights_of(run("memory"))


def test_with_enough_memory_nothing_changes() -> None:
    plain, halving = trainer_of(graph_of(action="stop")), trainer_of(graph_of())
    for trainer in (plain, halving):
        trainer.run()
    assert weights_of(plain) == weights_of(halving)
    assert plain.metrics == halving.metrics
    assert halving.read("train_batch.parts") == 1


def test_uneven_parts_weigh_as_their_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backward, "most", 3)
    data = [{"inputs": torch.randn(5, 4, generator=torch.Generator().manual_seed(1)), "targets": torch.ones(5, 1)}]
    ends = []
    for most in (3, 5):
        monkeypatch.setattr(Backward, "most", most)
        trainer = trainer_of(graph_of(1).set("finish", after="3 steps"), train_data=data)
        trainer.resources["model"][1].p = 0.0
        trainer.run()
        ends.append(torch.cat([weight.flatten() for weight in trainer.resources["model"].parameters()]))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


@pytest.mark.full
def test_a_cut_run_equals_one_never_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backward, "most", SAMPLES // 2)
    whole = trainer_of(graph_of())
    whole.run()
    for cut in (1, 3, 5):
        trainer_of(graph_of(), tmp_path / str(cut)).run(until=f"{cut} batches")
        second = trainer_of(graph_of(), tmp_path / str(cut))
        second.run()
        assert second.digest() == whole.digest()
        assert second.read("train_batch.parts") == 2


# ---- what is reported


def test_the_error_names_node_batch_and_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backward, "most", 0)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as error:
        trainer_of(graph_of(action="stop")).run()
    assert error.value.__notes__ == ["raised in node `train_batch` (step 0, epoch 0.20, batch 1/5)"]


def test_a_batch_that_cannot_be_cut_further_raises_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backward, "most", 0)
    with pytest.raises(torch.OutOfMemoryError) as error:
        trainer_of(graph_of()).run()
    assert error.value.__notes__[0] == "the batch cannot be cut: it has 8 samples, and would have 16 parts"
    monkeypatch.setattr(Backward, "most", 4)
    data = [{**resources()["train_data"][0], "names": ["a"] * SAMPLES}]
    with pytest.raises(torch.OutOfMemoryError) as error:
        trainer_of(graph_of(), train_data=data).run()
    assert error.value.__notes__[0].startswith("the batch cannot be cut: it holds more than tensors")


def test_other_errors_are_raised_and_leave_the_gradients_as_they_were() -> None:
    def failing(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        raise ValueError("no label")

    trainer = trainer_of(graph_of(), training_step=failing)
    with pytest.raises(ValueError, match="no label"):
        trainer.run()
    assert all(weight.grad is None for weight in trainer.resources["model"].parameters())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda graph: graph.overlay("token_windows").set("train_batch", per="samples"), "not for sums"),
        (lambda graph: graph.set("train_batch", writes={"largest": "largest"}), "the step function writes slots"),
    ],
)
def test_where_parts_would_not_be_the_same_it_is_refused(change: Any, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        trainer_of(change(graph_of(1)))


def test_it_is_refused_among_several_ranks() -> None:
    def run(ranks: Any) -> str:
        with pytest.raises(GraphError, match="several ranks: one would cut its batches") as error:
            trainer_of(graph_of(1))
        return error.value.problems[0].hint

    assert run_ranks(2, run) == ["halve the batch size, and double accumulate.every"] * 2


def test_a_step_function_that_asks_for_the_end_is_asked_in_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backward, "most", SAMPLES // 2)
    trainer = trainer_of(graph_of(1), training_step=lambda model, batch: (step(model, batch), STOP))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.read("next_batch.batches") == trainer.read("step.steps") == 1
    assert trainer.read("train_batch.parts") == 2


def test_the_node_that_cuts_is_named_where_another_one_is_set() -> None:
    (problem,) = Graph.load("fit").set("accumulate", on_out_of_memory="halve").check()
    assert 'that is `train_batch.on_out_of_memory = "halve"` here' in str(problem)
