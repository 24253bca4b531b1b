"""A graph run equals the same loop written by hand, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from graphtrain.plan.scope import named_by
from graphtrain.state.random import capture_random, restore_random, seed_everything
from tests.checks.corpus import without_window
from tests.program.small_run import (
    Augmented,
    make_loader,
    make_model,
    make_optimizer,
    small_graph,
    small_trainer,
    training_step,
)

EPOCHS = 3


def train_by_hand(every: int, max_norm: float, optimizer_kind: str, loader_kind: str) -> tuple[list[float], Any, Any]:
    """The reference: losses of all batches in order, final weights, final optimizer state."""
    torch.set_num_threads(1)
    seed_everything(7)
    model = make_model()
    optimizer, scheduler = make_optimizer(optimizer_kind, model)
    data = Augmented()
    train_data = make_loader(loader_kind, data)
    if loader_kind == "Loader":
        train_data.seed = 11
    val_data = DataLoader(data, 4)
    losses: list[float] = []
    seed_everything(11)
    for _ in range(EPOCHS):
        batches = math.ceil(len(data) / 3)
        for number, batch in enumerate(train_data, start=1):
            loss = training_step(model, batch)
            losses.append(loss.item())
            (loss / every).backward()
            stepped = number % every == 0 or number == batches
            if stepped:
                if max_norm != math.inf:
                    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
            if number in (math.ceil(batches / 2), batches):
                validate_by_hand(model, val_data, losses)
            if stepped and scheduler is not None:
                scheduler.step()
    return losses, model.state_dict(), optimizer.state_dict()


def validate_by_hand(model: nn.Module, val_data: Any, losses: list[float]) -> None:
    random = capture_random()
    seed_everything(11)
    model.eval()
    with torch.no_grad():
        losses += [training_step(model, batch).item() for batch in val_data]
    model.train()
    restore_random(random)


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit, through dicts and lists."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@pytest.mark.second(12)
@pytest.mark.first(2)
@pytest.mark.parametrize("loader", ["Loader", "DataLoader", "own generator", "unsized, drawn at once"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("max_norm", [math.inf, 0.5])
@pytest.mark.parametrize("every", [1, 4])
def test_graph_equals_the_loop_written_by_hand(every: int, max_norm: float, optimizer: str, loader: str) -> None:
    losses, weights, optimizer_state = train_by_hand(every, max_norm, optimizer, loader)
    graph = small_graph(every, max_norm, f"{EPOCHS} epochs")
    if loader.startswith(
        "unsized"
    ):  # without a length an epoch has no fractions: the hand-written loop knows the length
        graph = graph.set("validate", every=["3 epoch_batches", "1 epochs"])
    seen: list[float] = []
    trainer = small_trainer(loader=loader, optimizer=optimizer, graph=graph, losses=seen)
    trainer.run()
    assert seen == losses
    resources = trainer.resources
    assert_same(resources["model"].state_dict(), weights)
    assert_same(resources["optimizer"].state_dict(), optimizer_state)


def test_the_comparison_notices_a_loss_that_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: the window is taken for 1."""
    losses, _, _ = train_by_hand(4, math.inf, "sgd", "Loader")
    graph = small_graph(4, math.inf, f"{EPOCHS} epochs").set("train_batch", reads={"window": "clip.norm_type"})
    seen: list[float] = []
    small_trainer(optimizer="sgd", graph=graph, losses=seen).run()
    assert seen[0] == losses[0]
    assert seen != losses


def test_a_loss_is_divided_by_the_one_window_of_its_graph_that_nobody_names() -> None:
    losses, weights, _ = train_by_hand(4, math.inf, "sgd", "Loader")
    graph = without_window(small_graph(4, math.inf, f"{EPOCHS} epochs"))
    assert graph.nodes["train_batch"].reads == {} and graph.check() == []
    seen: list[float] = []
    trainer = small_trainer(optimizer="sgd", graph=graph, losses=seen)
    trainer.run()
    assert seen == losses
    assert_same(trainer.resources["model"].state_dict(), weights)


def test_a_window_of_another_optimizer_or_one_of_two_divides_nothing() -> None:
    graph = without_window()
    train_batch = graph.nodes["train_batch"]
    assert named_by(graph, train_batch, "window") == "accumulate.window"
    second = graph.insert("more", "accumulate", after="accumulate")
    assert named_by(second, train_batch, "window") == "window"
    assert named_by(graph.set("accumulate", reads={"optimizer": "other"}), train_batch, "window") == "window"
