"""What becomes of losses, gradients and weights that are not finite; against loops by hand, cut, and on ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Outcome, Trainer
from graphtrain.errors import NotFiniteError
from graphtrain.state.random import seed_everything
from tests.ranks.fake_ranks import run_ranks

BATCHES, EPOCHS, WINDOW = 7, 3, 2


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Infinite for a batch with an infinite value."""
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def resources(faults: dict[int, float], **others: Any) -> dict[str, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.25), nn.Linear(6, 1))
    batches = [torch.rand(6, 4) + 0.1 for _ in range(BATCHES)]
    for number, value in faults.items():
        batches[number][0, 0] = value
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "train_data": batches,
        "training_step": loss_of,
        **others,
    }


def graph_of(window: int = WINDOW, overlays: tuple[str, ...] = ("check_finite",), **actions: str) -> Graph:
    graph = Graph.load("fit").overlay(*overlays)
    for name, action in actions.items():
        graph = graph.set(f"check_{name}", action=action)
    graph = graph.set("accumulate", every=window).set("finish", after=f"{EPOCHS} epochs")
    return graph.set("log", every="3 steps").set("checkpoint", every="never")


def trainer_of(
    graph: Graph, faults: dict[int, float], run_dir: Path | None = None, said: list[str] | None = None
) -> Trainer:
    notify = (lambda line: None) if said is None else said.append
    return Trainer(graph, run_dir=run_dir, seed=0, display=None, notify=notify, **resources(faults))


def by_hand(faults: dict[int, float], window: int) -> tuple[Any, int]:
    """A loop that gives up the windows with a fault: the weights, and the steps."""
    supplied = resources(faults)
    model, optimizer = supplied["model"], supplied["optimizer"]
    seed_everything(0)
    count = steps = 0
    for _ in range(EPOCHS):
        for number, batch in enumerate(supplied["train_data"], start=1):
            loss = loss_of(model, batch)
            (loss / window).backward()  # type: ignore[no-untyped-call]
            count += 1
            if not math.isfinite(loss.detach()):
                optimizer.zero_grad()
                count = 0
            if count == window or (number == BATCHES and count):
                optimizer.step()
                steps += 1
                optimizer.zero_grad()
                count = 0
    return [weight.tolist() for weight in model.parameters()], steps


def weights_of(trainer: Trainer) -> list[Any]:
    return [weight.tolist() for weight in trainer.resources["model"].parameters()]


LOSS = {2: math.inf, 5: math.nan}


# ---- stop, and report


def test_a_loss_that_is_not_finite_is_named_when_a_row_is_recorded() -> None:
    trainer = trainer_of(graph_of(), LOSS)
    with pytest.raises(NotFiniteError) as error:
        trainer.run()
    assert error.value.message == ("the loss is nan at batch 3 of epoch 1, after step 1")
    assert trainer.read("next_batch.batches") == 6, "where the first row was due"


def test_finite_runs_are_the_same_with_and_without() -> None:
    plain = trainer_of(graph_of(overlays=()), {})
    checked = trainer_of(graph_of(), {})
    for trainer in (plain, checked):
        assert trainer.run() is Outcome.FINISHED
    assert weights_of(plain) == weights_of(checked)
    assert plain.metrics == checked.metrics


# ---- drop


@pytest.mark.parametrize("window", [1, 2, 3])
def test_windows_with_a_fault_are_dropped_as_by_hand(window: int) -> None:
    said: list[str] = []
    trainer = trainer_of(graph_of(window, loss="drop"), LOSS, said=said)
    assert trainer.run() is Outcome.FINISHED
    weights, steps = by_hand(LOSS, window)
    assert weights_of(trainer) == weights
    assert trainer.read("step.steps") == steps
    assert trainer.read("check_loss.dropped") == EPOCHS * len(LOSS)
    assert len([line for line in said if "the window is dropped" in line]) == 1
    assert all(math.isfinite(value) for row in trainer.metrics for value in row.values())


def expect_cuts_are_exact(graph: Graph, folder: Path, first_cut: int, *, is_all: bool) -> None:
    """Cut at one transition and in the middle, or at all of them."""
    whole, length = trainer_of(graph, LOSS), 0
    while whole.position != "end":
        whole.advance()
        length += 1
    for cut in range(1, length) if is_all else (first_cut, length // 2):
        first = trainer_of(graph, LOSS, folder / str(cut))
        first.advance(cut)
        first.save()
        second = trainer_of(graph, LOSS, folder / str(cut))
        second.run()
        assert second.digest() == whole.digest(), f"cut before {first.position}"


@pytest.mark.full
@pytest.mark.parametrize("cuts", ["some", pytest.param("all", marks=pytest.mark.sweep)])
def test_a_cut_run_equals_one_never_cut(cuts: str, tmp_path: Path) -> None:
    expect_cuts_are_exact(graph_of(loss="drop"), tmp_path, 20, is_all=cuts == "all")


def test_what_was_not_read_before_a_cut_is_named_after_it(tmp_path: Path) -> None:
    trainer_of(graph_of(), LOSS, tmp_path).run(until="4 batches")
    with pytest.raises(NotFiniteError, match="the loss is nan at batch 3 of epoch 1"):
        trainer_of(graph_of(), LOSS, tmp_path).run()


# ---- ranks


LOSS_OF_RANKS = {5: math.nan}


def test_ranks_drop_a_window_together() -> None:
    """A rank without a fault drops its part too."""

    def run(ranks: Any) -> Any:
        trainer = trainer_of(graph_of(1, loss="drop"), LOSS)
        trainer.run()
        return weights_of(trainer), trainer.read("step.steps"), trainer.read("check_loss.dropped")

    first, second = run_ranks(2, run)
    assert first == second
    assert all(math.isfinite(value) for row in first[0][0] for value in row)
    rounds_with_a_fault = 2  # batches 3 and 4, and 5 and 6, of an epoch of 7
    assert first[1:] == (EPOCHS * (4 - rounds_with_a_fault), EPOCHS * rounds_with_a_fault)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("world_size", [2, 1, 3])
def test_what_ranks_have_not_read_is_each_ones_own_in_a_cut(world_size: int, tmp_path: Path) -> None:
    def begin(ranks: Any) -> None:
        trainer = trainer_of(graph_of(1), LOSS_OF_RANKS, tmp_path)
        while trainer.position != "decide" or trainer.read("next_batch.batches") < 4:
            trainer.advance()
        trainer.save()

    def resume(ranks: Any) -> str:
        with pytest.raises(NotFiniteError) as error:
            trainer_of(graph_of(1), LOSS_OF_RANKS, tmp_path).run()
        return error.value.message

    run_ranks(2, begin)
    messages = run_ranks(world_size, resume) if world_size > 1 else [resume(None)]
    assert len({*messages}) == 1
    assert messages[0].startswith("the loss is nan at batch 6 of epoch 1")


@pytest.mark.parametrize(("index", "rank"), [(4, 0), (5, 1)])
def test_ranks_stop_with_the_same_error(index: int, rank: int) -> None:
    def run(ranks: Any) -> str:
        with pytest.raises(NotFiniteError) as error:
            trainer_of(graph_of(1), {index: math.nan}).run()
        return error.value.message

    first, second = run_ranks(2, run)
    assert first == second == f"the loss is nan at batch {index + 1} of epoch 1, after step 2, on rank {rank}"


def test_a_replay_is_led_to_the_batch_and_the_node_where_it_arose(tmp_path: Path) -> None:
    trainer = trainer_of(graph_of().set("checkpoint", every="2 batches"), {6: math.nan}, tmp_path)
    with pytest.raises(NotFiniteError, match="batch 7 of epoch 1"):
        trainer.run()
    assert trainer.replay_options() == ["--to", "42 samples", "--node", "check_loss"]
