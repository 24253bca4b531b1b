"""The overlay `fp16` against a loop by hand with `GradScaler`, with losses that overflow; through cuts and on ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Outcome, Trainer, UsageError
from graphtrain.state.random import seed_everything
from tests.ranks.fake_ranks import run_ranks

BATCHES, EPOCHS, WINDOW = 7, 3, 2
SCALER = {"init_scale": 2.0**18, "growth_factor": 3.0, "backoff_factor": 0.3, "growth_interval": 2}
HUGE = 1e5  # of which the square is infinite in float16


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def resources(huge: tuple[int, ...] = (5,), **others: Any) -> dict[str, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.25), nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    batches = [torch.randn(6, 4) * (HUGE if number in huge else 1) for number in range(BATCHES)]
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9),
        "train_data": batches,
        "training_step": loss_of,
        **others,
    }


def graph_of(*overlays: str, window: int = WINDOW, max_norm: float = 0.5) -> Graph:
    graph = (
        Graph.load("fit")
        .set("schedule", every="1 steps")
        .overlay("fp16", *overlays)
        .set("unscale", **SCALER)
        .set("clip", max_norm=max_norm)
    )
    graph = graph.set("accumulate", every=window).set("finish", after=f"{EPOCHS} epochs")
    return graph.set("log", every="never").set("checkpoint", every="never")


def trainer_of(graph: Graph, run_dir: Path | None = None, **supplied: Any) -> Trainer:
    return Trainer(graph, run_dir=run_dir, seed=0, display=None, notify=lambda line: None, **(supplied or resources()))


def by_hand(
    supplied: dict[str, Any], window: int, max_norm: float = 0.5, batches: int = BATCHES
) -> tuple[torch.amp.GradScaler, list[bool], Any]:
    """The reference: the scaler, whether each step was taken, and an average of the weights after each."""
    model, optimizer, scheduler = (supplied[name] for name in ("model", "optimizer", "scheduler"))
    scaler, average = torch.amp.GradScaler("cpu", **SCALER), copy.deepcopy(model)
    taken: list[bool] = []
    seed_everything(0)
    for _ in range(EPOCHS):
        for number, batch in enumerate(supplied["train_data"], start=1):
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model, batch)
            scaler.scale(loss if window == 1 else loss / window).backward()
            if number % window and number < batches:
                continue
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            before = model[0].weight.clone()
            scaler.step(optimizer)
            taken.append(not torch.equal(before, model[0].weight))
            scaler.update()
            optimizer.zero_grad()
            if taken[-1]:
                scheduler.step()
                with torch.no_grad():
                    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                        mean.lerp_(weight, 1 - 0.9)
    return scaler, taken, average


@pytest.mark.parametrize("window", [1, 2, 3])
def test_it_trains_what_a_loop_with_a_scaler_trains(window: int) -> None:
    reference = resources()
    scaler, taken, average = by_hand(reference, window)
    assert 3 <= sum(taken) < len(taken) - 3, "some overflow, and some do not"
    trainer = trainer_of(graph_of("ema", window=window).set("ema", decay=0.9, warmup=False))
    assert trainer.run() is Outcome.FINISHED
    for name in ("model", "optimizer", "scheduler"):
        expected, state = reference[name].state_dict(), trainer.resources[name].state_dict()
        if name == "scheduler":
            assert state["last_epoch"] == expected["last_epoch"] == sum(taken)
        else:
            assert_same(state, expected)
    assert_same(trainer.resources["average"].state_dict(), average.state_dict())
    assert trainer.read("unscale.scale") == scaler.get_scale()
    assert trainer.read("unscale.finite_windows") == scaler._get_growth_tracker()
    assert trainer.read("unscale.overflows") == taken.count(False)
    assert trainer.read("step.steps") == trainer.read("ema.updates") == sum(taken)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict | list | tuple):
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key])
    else:
        assert one == other


@pytest.mark.full
@pytest.mark.parametrize("cuts", ["some", pytest.param("all", marks=pytest.mark.sweep)])
def test_a_cut_run_equals_one_never_cut(cuts: str, tmp_path: Path) -> None:
    graph = graph_of("ema")
    whole, length = trainer_of(graph), 0
    behind_unscale = []
    while whole.position != "end":
        if whole.position == "unscale":
            behind_unscale.append(length + 1)
        whole.advance()
        length += 1
    for cut in [*behind_unscale[2:4], length // 2] if cuts == "some" else range(1, length):
        first = trainer_of(graph, tmp_path / str(cut))
        first.advance(cut)
        first.save()
        second = trainer_of(graph, tmp_path / str(cut))
        second.run()
        assert second.digest() == whole.digest(), f"cut before {first.position}"


def test_ranks_find_the_same_overflow_and_keep_the_same_scale() -> None:
    """A batch that overflows is on one rank alone."""

    def run(ranks: Any) -> tuple[Any, ...]:
        trainer = trainer_of(graph_of(window=1))
        trainer.run()
        weights = [weight.tolist() for weight in trainer.resources["model"].parameters()]
        counts = [trainer.read(f"unscale.{name}") for name in ("scale", "overflows", "finite_windows")]
        return trainer.read("step.steps"), counts, weights

    first, second = run_ranks(2, run)
    assert first == second
    assert first[1][1] >= EPOCHS


def test_a_run_whose_every_window_overflows_ends_with_an_error() -> None:
    graph = graph_of().set("finish", after="3 steps").set("unscale", backoff_factor=1e-3)
    with pytest.raises(UsageError, match=r"the scale of the loss has fallen from 262144 to 0: after \d+ overflows"):
        trainer_of(graph, **resources(tuple(range(BATCHES)))).run()


def test_a_model_in_float16_is_refused() -> None:
    supplied = resources(())
    supplied["model"].half()
    with pytest.raises(UsageError, match="Attempting to unscale FP16 gradients") as error:
        trainer_of(graph_of(), **supplied).run()
    assert "leave the model in float32" in error.value.hint
