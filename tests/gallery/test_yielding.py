"""The graph `yielding` at two ranks, with both losses in a window, and with a function that yields them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer, UsageError
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


# ---- a function that yields


def training_step(model: Any, batch: torch.Tensor) -> Iterator[torch.Tensor]:
    for loss_of in yielding.LOSSES:
        yield loss_of(model, batch)


def of_a_function() -> Graph:
    """`training_step` yields a loss for each optimizer, and there is no save point before the last of them."""
    graph = Graph.load("yielding").insert("begin_losses", between=("next_batch", "next_loss"))
    graph = dataclasses.replace(graph.redirect("next_batch", "accumulate", "decide"), allow=("G601",))
    return graph.set("finish", after=f"{yielding.EPOCHS} epochs").set("checkpoint", every="never")


def yielded() -> dict[str, Any]:
    given = yielding.resources() | {"training_step": training_step}
    del given["losses"]
    return given


def test_a_function_that_yields_trains_what_a_list_trains() -> None:
    by_list, by_function = run(yielding.graph(), **yielding.resources()), run(of_a_function(), **yielded())
    assert weights(by_function.resources) == weights(by_list.resources)


def test_a_function_that_yields_too_few_losses_is_named() -> None:
    def one_loss(model: Any, batch: torch.Tensor) -> Iterator[torch.Tensor]:
        yield yielding.body_loss(model, batch)

    with pytest.raises(UsageError, match="`training_step` yielded 1 losses, and there are 2 optimizers"):
        run(of_a_function(), **yielded() | {"training_step": one_loss})


@pytest.mark.full
@pytest.mark.parametrize("cut", [4, 7, 19])
def test_a_cut_between_the_losses_of_a_function_is_made_behind_them(cut: int, tmp_path: Path) -> None:
    whole = run(of_a_function(), **yielded())
    first = trainer_of(of_a_function(), tmp_path / "run", **yielded())
    first.advance(cut)
    first.save()
    assert first.position == "decide"
    second = trainer_of(of_a_function(), tmp_path / "run", **yielded())
    second.run()
    assert second.digest() == whole.digest()
