"""The page of hooks answers every name of the older training loop, and its graphs train as the loops by hand do."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.graph.registry import known_overlays
from tests.docs.blocks import read_blocks, without_fences
from tests.docs.test_lightning import sections_of

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"
NAMES = sections_of(Path(__file__).with_name("train_loop_names.txt").read_text(encoding="utf-8"), "#")
SECTIONS = sections_of(without_fences(PAGE.read_text(encoding="utf-8")), "##")
BLOCKS = read_blocks(PAGE)
_CODE = re.compile(r"`([^`]+)`")
BATCHES, EPOCHS = 6, 4

Model = torch.nn.Module
Optimizer = torch.optim.Optimizer


def rows_of(section: str) -> dict[str, str]:
    """The names in the first column of a table, each with its answer."""
    rows = [row.partition(" | ") for row in SECTIONS[section] if row.startswith("| `")]
    return {name: answer for names, _, answer in rows for name in _CODE.findall(names)}


@pytest.mark.parametrize("section", NAMES)
def test_every_name_is_answered_once_and_no_other(section: str) -> None:
    firsts = [row.partition(" | ")[0] for row in SECTIONS[section] if row.startswith("| `")]
    assert sorted(name for first in firsts for name in _CODE.findall(first)) == sorted(NAMES[section])
    assert all(answer.strip(" |") for answer in rows_of(section).values())


def test_what_an_answer_names_is_there() -> None:
    """Nodes and guards of `fit` in the first table; overlays, and parameters of nodes, anywhere."""
    fit = Graph.load("fit")
    assert list(rows_of("A batch, from hook to hook")) == list(fit.nodes)
    text = without_fences(PAGE.read_text(encoding="utf-8"))
    assert {*re.findall(r"--overlay (\w+)", text)} <= {*known_overlays()}
    for guard in re.findall(r"the guard `(\w+)`", text):
        assert guard in fit.guards, guard


# ---- the examples of manual optimization


def resources(schedule: Callable[[Optimizer], Any] | None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    given = {"model": model, "optimizer": optimizer, "train_data": [*torch.randn(BATCHES, 5, 3).unbind()]}
    return given | ({"scheduler": schedule(optimizer)} if schedule is not None else {})


def loss_of(model: Model, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def body(name: str, given: dict[str, Any], batch: torch.Tensor, number: int, losses: list[float]) -> None:
    """What the example of manual optimization does for a batch: the `number`-th, from 1."""
    model, optimizer, scheduler = given["model"], given["optimizer"], given.get("scheduler")
    every = 4 if name == "gradients of 4 batches" else 1
    is_last, epoch = number % BATCHES == 0, (number - 1) // BATCHES
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    losses.append(loss.item())
    if name == "gradients clipped to a norm of 0.5":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    if number % every == 0:
        optimizer.step()
        optimizer.zero_grad()
        if name == "a scheduler stepped with every step":
            scheduler.step()
    if name == "a scheduler stepped every 4 batches" and number % 4 == 0:
        scheduler.step()
    if name == "a scheduler stepped every 2 epochs" and is_last and epoch % 2:
        scheduler.step()
    if name == "a scheduler that is given the loss of the epoch" and is_last:
        scheduler.step(sum(losses) / len(losses))
        losses.clear()


def by_hand(name: str, given: dict[str, Any]) -> None:
    """The loop that the example of manual optimization is."""
    losses: list[float] = []
    for number, batch in enumerate(given["train_data"] * EPOCHS, 1):
        body(name, given, batch, number, losses)


def schedule_of(name: str) -> Callable[[Optimizer], Any] | None:
    if "given the loss" in name:
        return lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    return (lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)) if "scheduler" in name else None


def page() -> dict[str, Any]:
    """What the Python of the page defines."""
    names: dict[str, Any] = {}
    for block in BLOCKS:
        if block.language == "python":
            # By its place on the page, where the source of its kinds is found.
            exec(compile("\n" * (block.line - 1) + block.text, str(PAGE), "exec"), names)  # noqa: S102  # our own page
    return names


def graph_of_page(name: str) -> Graph:
    return Graph.loads(next(block.text for block in BLOCKS if block.words == (name,)))


@functools.cache  # half a second
def examples() -> dict[str, Graph]:
    return dict(page()["examples"])


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", examples())
def test_an_example_trains_as_the_loop_by_hand(name: str) -> None:
    expected, trained = resources(schedule_of(name)), resources(schedule_of(name))
    by_hand(name, expected)
    graph = examples()[name].set("finish", after=f"{EPOCHS * BATCHES} batches")
    trainer = Trainer(graph, **trained, training_step=loss_of, display=None, notify=lambda line: None)
    trainer.run()
    for weight, weight_by_hand in zip(trained["model"].parameters(), expected["model"].parameters(), strict=True):
        assert torch.equal(weight, weight_by_hand)
    rates = [each["optimizer"].param_groups[0]["lr"] for each in (trained, expected)]
    assert rates[0] == rates[1]
    assert ("scheduler" in name) == (rates[0] != 0.05), "the schedule has moved, where there is one"


@pytest.mark.first(4)
@pytest.mark.parametrize("name", examples())
def test_the_graph_manual_takes_the_body_of_an_example_as_it_is(name: str) -> None:
    """It asks for them by name: they are what `self.optimizers()` and `self.lr_schedulers()` are there."""
    expected, trained = resources(schedule_of(name)), resources(schedule_of(name))
    by_hand(name, expected)
    losses: list[float] = []

    def training_step(
        model: Model, batch: torch.Tensor, epoch: int, batch_index: int, optimizer: Optimizer, scheduler: Any = None
    ) -> None:
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        body(name, given, batch, epoch * BATCHES + batch_index + 1, losses)

    graph = Graph.load("manual").set("finish", after=f"{EPOCHS} epochs").set("checkpoint", every="never")
    trainer = Trainer(graph, **trained, training_step=training_step, display=None, notify=lambda line: None)
    trainer.run()
    assert_equal(trained, expected)
    assert trainer.read("step.steps") == EPOCHS * BATCHES // (
        4 if "4 batches" in name and "scheduler" not in name else 1
    )
    assert trained["optimizer"].param_groups[0]["lr"] == expected["optimizer"].param_groups[0]["lr"]


def test_two_optimizers_train_as_the_loop_by_hand() -> None:
    """The critic in every batch, the generator in every second one; each without gradients of the other."""

    def generated(generator: Model, batch: torch.Tensor) -> torch.Tensor:
        return generator(batch).tanh()

    def critic_step(model: Model, batch: torch.Tensor) -> torch.Tensor:
        fake = model["critic"](generated(model["generator"], batch))
        return torch.nn.functional.softplus(fake).mean() + torch.nn.functional.softplus(-model["critic"](batch)).mean()

    def generator_step(model: Model, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-model["critic"](generated(model["generator"], batch))).mean()

    def made() -> dict[str, Any]:
        torch.manual_seed(0)
        parts = {"generator": torch.nn.Linear(3, 3), "critic": torch.nn.Linear(3, 1)}
        model = torch.nn.ModuleDict(parts)
        optimizers = {f"{name[0]}_optimizer": torch.optim.Adam(part.parameters(), 0.05) for name, part in parts.items()}
        return {"model": model, **optimizers, "train_data": [*torch.randn(BATCHES, 5, 3).unbind()]}

    expected, trained = made(), made()
    model = expected["model"]
    for number, batch in enumerate(2 * expected["train_data"]):
        for name, step in (("critic", critic_step), ("generator", generator_step)):
            if name == "critic" or number % 2:
                parameters = [*model[name].parameters()]
                gradients = torch.autograd.grad(step(model, batch), parameters)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                expected[f"{name[0]}_optimizer"].step()
    graph = graph_of_page("two.toml")
    steps: dict[str, Any] = {"critic_step": critic_step, "generator_step": generator_step}
    Trainer(graph, **trained, **steps, display=None, notify=lambda line: None).run()
    for weight, weight_by_hand in zip(trained["model"].parameters(), model.parameters(), strict=True):
        assert torch.equal(weight, weight_by_hand)
        assert weight.grad is None, "cleared, and none of the other optimizer's"


# ---- the Loops


def assert_equal(trained: dict[str, Any], expected: dict[str, Any]) -> None:
    for weight, weight_by_hand in zip(trained["model"].parameters(), expected["model"].parameters(), strict=True):
        assert torch.equal(weight, weight_by_hand)


@pytest.mark.full
def test_gradients_scaled_by_a_validation_train_as_the_loop_by_hand() -> None:
    expected, trained = resources(None), resources(None)
    guiding = [torch.full((2, 3), 0.5), torch.ones(2, 3)]
    for batch in 2 * expected["train_data"]:
        loss_of(expected["model"], batch).backward()
        with torch.no_grad():
            val_loss = sum(loss_of(expected["model"], each) for each in guiding)
        for parameter in expected["model"].parameters():
            assert parameter.grad is not None
            parameter.grad /= val_loss
        expected["optimizer"].step()
        expected["optimizer"].zero_grad()
    graph = page()["guided"].set("finish", after="2 epochs")
    given = {**trained, "guiding_data": guiding, "training_step": loss_of}
    Trainer(graph, **given, display=None, notify=lambda line: None).run()
    assert_equal(trained, expected)


def test_a_loop_of_ones_own_trains_as_the_loop_by_hand() -> None:
    expected, trained = resources(None), resources(None)
    for batch in 2 * expected["train_data"]:
        loss_of(expected["model"], batch).backward()
        expected["optimizer"].step()
        expected["optimizer"].zero_grad()
    graph = graph_of_page("own.toml")
    Trainer(graph, **trained, training_step=loss_of, display=None, notify=lambda line: None).run()
    assert_equal(trained, expected)


@pytest.mark.full
def test_a_hook_is_called_and_a_loop_inside_another_is_shorter() -> None:
    names = page()
    seen: list[int] = []

    def validation_step(model: Model, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        seen.append(1)
        return {"loss": loss_of(model, batch)}

    given = {**resources(None), "training_step": loss_of}
    Trainer(names["hooked"].set("finish", after="1 epochs"), **given, display=None, notify=lambda line: None).run()
    assert names["calls"] == list(range(1, BATCHES + 1))
    given |= {"val_data": [torch.ones(2, 3)] * 5, "validation_step": validation_step}
    Trainer(names["nested"].set("finish", after="3 epochs"), **given, display=None, notify=lambda line: None).run()
    assert len(seen) == 3 * 2
