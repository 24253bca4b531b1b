"""Promise 3: parameters, guards and clocks read expressions over fields: as by hand, and through cuts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, GuardError, Trigger, fit, node
from tests.training.tiny import tiny
from tests.world import Resources, World, assert_as_by_hand, assert_exact, world

BATCHES, EPOCHS = 7, 3
QUIET = fit(epochs=EPOCHS, save_every="never")


def samples() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(4, 5, generator=generator), torch.randn(4, 2, generator=generator)) for _ in range(BATCHES)]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def squared_error(model: nn.Module, batch: Any) -> torch.Tensor:
    return 9 * nn.functional.mse_loss(model(batch[0]), batch[1])


def training(graph: Graph, **resources: Callable[[], Any]) -> World:
    return world(
        graph,
        model=make_model,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
        scheduler="none",
        data=samples,
        training_step=squared_error,
        **{"val_data": lambda: None, **resources},
    )


def windows_by_hand(
    resources: Resources, every: Callable[[int, int], int], max_norm: Callable[[int, int], float]
) -> None:
    """A loop whose windows and bounds vary.

    Arguments:
        every: batches so far, epoch -> how large a window is that opens now.
        max_norm: steps so far, epoch -> the bound of the gradients.
    """
    model, optimizer = resources["model"], resources["optimizer"]
    count = batches = steps = window = 0
    for epoch in range(EPOCHS):
        for number, batch in enumerate(resources["train_data"], start=1):
            batches += 1
            if count == 0:
                window = every(batches, epoch)
            (squared_error(model, batch) / window).backward()
            count += 1
            if count == window or number == BATCHES:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm(steps, epoch))
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                count = 0


# ---- averages of the weights


@node
def average(model: nn.Module, mean: nn.Module, *, decay: float = 0.5, power: int = 1) -> None:
    """Move an average of the weights towards those of the model."""
    assert type(decay) is float and type(power) is int
    with torch.no_grad():
        for slow, fast in zip(mean.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, (1 - decay) ** power)


def averaged_by_hand(resources: Resources) -> None:
    runs = 0
    for epoch in range(EPOCHS):
        for batch in resources["train_data"]:
            squared_error(resources["model"], batch).backward()
            resources["optimizer"].step()
            decay = min(0.99, (1 + runs) / (10 + runs))
            average(resources["model"], resources["mean"], decay=decay, power=1 + epoch // 2)
            runs += 1
            resources["optimizer"].zero_grad()


# ---- a slot and a guard in an expression


@node(writes="norm")
def measure(model: nn.Module) -> float:
    """The norm of the gradients, a Python number."""
    return float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def measured() -> Graph:
    graph = QUIET.set("accumulate", every=2).insert("measure", measure, after="accumulate")
    graph = graph.disconnect("measure", "exchange").disconnect("measure", "decide").connect("measure", "exchange")
    graph = graph.guard("not_reached", "not accumulation_reached").guard("late", "next_batch.epoch >= 1")
    graph = graph.connect("accumulate", "decide", when="not_reached").redirect("accumulate", "measure", "measure")
    return graph.set("clip", reads={"max_norm": "norm / 2 if late else norm"})


def measured_by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    for epoch in range(EPOCHS):
        for number, batch in enumerate(resources["train_data"], start=1):
            (squared_error(model, batch) / 2).backward()
            if number % 2 == 0 or number == BATCHES:
                norm = measure(model)
                nn.utils.clip_grad_norm_(model.parameters(), norm / 2 if epoch >= 1 else norm)
                optimizer.step()
                optimizer.zero_grad()


# ---- what is read inside a body

ROUNDS = """
format = 1
name   = "rounds"
start  = "train"

[nodes]
train  = { graph = "fit" }
shrink = {}
note   = {}
decide = { use = "choice" }

[guards]
done = "train.runs * train/step.steps/2 >= 6 and train/finish.due and not train/validate/next_batch.last"

[edges]
train  = ["shrink"]
shrink = ["note"]
note   = ["decide"]
decide = ["end if done", "train"]

[clock]
rounds = "train.runs"
"""
STEPS = (BATCHES + 1) // 2  # of a round: an epoch of windows of two
ROUND = Trigger("1 rounds")


@node
def shrink(model: nn.Module, *, share: float = 0.0) -> None:
    """Make the weights smaller by a share."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 - share)


@node
def note_steps(steps: int, noted: list[int], *, every: Trigger = ROUND) -> None:
    """Note where it was due."""
    noted.append(steps)


def rounds() -> Graph:
    share = {"share": "train/step.steps / (10 * max(1, train.runs))"}
    graph = Graph.loads(ROUNDS).replace("shrink", shrink, reads=share)
    graph = graph.replace("note", note_steps, every="1 rounds", reads={"steps": "train.runs"})
    return graph.set("train", graph=fit(epochs=1, accumulate=2, save_every="never"))


def rounds_by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    for runs in (1, 2, 3):
        for number, batch in enumerate(resources["train_data"], start=1):
            (squared_error(model, batch) / 2).backward()
            if number % 2 == 0 or number == BATCHES:
                optimizer.step()
                optimizer.zero_grad()
        shrink(model, share=STEPS / (10 * runs))


ROWS: dict[str, tuple[World, Callable[[Resources], None]]] = {
    "a bound and a window": (
        training(
            QUIET.set(
                "accumulate", reads={"every": "1 if next_batch.epoch < 1 else 2 if next_batch.batches % 5 > 0 else 3"}
            ).set("clip", reads={"max_norm": "inf if step.steps < 3 else max(0.1, cos(pi * step.steps / 20))"})
        ),
        partial(
            windows_by_hand,
            every=lambda batches, epoch: 1 if epoch < 1 else 2 if batches % 5 else 3,
            max_norm=lambda steps, epoch: math.inf if steps < 3 else max(0.1, math.cos(math.pi * steps / 20)),
        ),
    ),
    "a window keeps the size with which it opened": (
        training(QUIET.set("accumulate", reads={"every": "4 - next_batch.batches % 3"})),
        partial(windows_by_hand, every=lambda batches, epoch: 4 - batches % 3, max_norm=lambda *counts: math.inf),
    ),
    "parameters of a function": (
        training(
            QUIET.insert(
                "average",
                average,
                after="step",
                reads={
                    "decay": "min(0.99, (1 + average.runs) / (10 + average.runs))",
                    "power": "1 + next_batch.epoch // 2",
                },
            ),
            mean=make_model,
        ),
        averaged_by_hand,
    ),
    "a slot and a guard": (training(measured()), measured_by_hand),
    "what is inside a body": (replace(training(rounds(), noted=list), options={"not_state": "noted"}), rounds_by_hand),
}


@pytest.mark.parametrize("name", ROWS)
def test_as_by_hand(name: str) -> None:
    it, loop = ROWS[name]
    assert [problem for problem in it.graph.check() if problem.severity == "error"] == []
    names = ("model", "optimizer", *(["mean"] if loop is averaged_by_hand else []))
    trainer = assert_as_by_hand(it, names, loop=loop)
    if "noted" in trainer.resources:
        assert trainer.resources["noted"] == [1, 2, 3], "a trigger counts from nothing each time that the body begins"


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", ROWS)
def test_through_cuts(name: str, tmp_path: Path) -> None:
    assert_exact(ROWS[name][0], tmp_path, at=3)


def test_an_open_window_keeps_its_size_where_the_run_is_resumed_with_another(tmp_path: Path) -> None:
    resources = training(QUIET).resources()
    windows_by_hand(resources, lambda batches, epoch: 4 if batches == 1 else 2, lambda *counts: math.inf)
    first = training(QUIET.set("accumulate", every=4)).trainer(tmp_path)
    first.run(until="2 batches")
    assert (first.read("accumulate.count"), first.read("accumulate.window")) == (2, 4)
    second = training(QUIET.set("accumulate", every=2)).trainer(tmp_path)
    second.run(until="4 batches")
    assert second.read("accumulate.last_count") == 4 and second.read("accumulate.every") == 2
    second.run()
    expected = resources["model"].state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in second.resources["model"].state_dict().items())


# ---- values that do not fit


@pytest.mark.parametrize(
    ("expressions", "reason"),
    [
        ({"max_norm": "1 / (5 - step.steps)"}, "raised ZeroDivisionError"),
        ({"max_norm": "5.0 - step.steps"}, "expected a number > 0, got 0.0"),
        ({"max_norm": "clip.norm_type", "norm_type": "3.0 - step.steps"}, "clip.norm_type: expected a number > 0"),
    ],
)
def test_a_value_that_does_not_fit_stops_the_run_and_names_the_expression(
    expressions: dict[str, str], reason: str
) -> None:
    graph = QUIET.set("clip", reads=expressions)
    assert {problem.severity for problem in graph.check()} <= {"warning"}
    with pytest.raises(Exception, match="clip") as caught:
        tiny(graph).run()
    name = "norm_type" if "norm_type" in expressions else "max_norm"
    assert reason in str(caught.value) and f'{name} = "{expressions[name]}"' in str(caught.value)
    assert (caught.value.__cause__ is not None) == ("expected" not in reason), "where it was raised is shown too"


@pytest.mark.parametrize(
    ("name", "guard", "edit", "reason"),
    [
        ("log_due", "step.steps / (next_batch.epoch_batches - 1) > 9 and log.due", None,
         "guard `log_due` on an edge leaving `decide` raised ZeroDivisionError"),
        ("between_epochs", "end_epoch.runs == begin_epoch.runs or accumulate.every > 9",
         {"every": "3 - step.steps"}, "accumulate.every: expected an integer > 0"),
    ],
)  # fmt: skip
def test_a_guard_that_fails_is_named_with_the_reason(
    name: str, guard: str, edit: dict[str, str] | None, reason: str
) -> None:
    graph = QUIET.guard(name, guard)
    graph = graph if edit is None else graph.set("accumulate", reads=edit)
    with pytest.raises(GuardError) as caught:
        tiny(graph).run()
    assert name in str(caught.value) and reason in str(caught.value)
    assert caught.value.__cause__ is not None, "where it was raised is shown too"


def test_the_loss_is_not_divided_by_an_expression_that_may_change_within_a_window() -> None:
    graph = QUIET.set("accumulate", reads={"every": "1 + next_batch.batches % 3"})
    (problem,) = graph.set("train_batch", reads={"window": "accumulate.every"}).check()
    assert problem.code == "G409" and 'window = "accumulate.window"' in problem.hint


def test_a_parameter_has_a_value_or_an_expression() -> None:
    graph = QUIET.set("clip", reads={"max_norm": "1.0 + step.steps"})
    assert "max_norm" not in graph.nodes["clip"].parameters
    assert "max_norm" not in graph.set("clip", max_norm=2.0).nodes["clip"].reads
    both = replace(graph.nodes["clip"], parameters={"max_norm": 3.0})
    (problem, *_) = replace(graph, nodes={**graph.nodes, "clip": both}).check()
    assert "`clip.max_norm` cannot be given an expression" in problem.message


def test_what_is_read_in_a_body_that_is_bypassed_is_as_before_it_ever_ran() -> None:
    graph = (
        fit(epochs=1)
        .guard("log_due", "log.due and validate/next_batch.batches == 0 and not validate/next_batch.last")
        .set("clip", reads={"max_norm": "1.0 + validate/next_batch.batches"})
    )
    assert graph.check() == []
    trainer = tiny(graph)
    trainer.run()
    assert (trainer.read("clip.max_norm"), trainer.read("validate/next_batch.last")) == (1.0, False)
    assert trainer.explain().node == "finish"


def test_explain_shows_what_a_guard_read_inside_a_body() -> None:
    lines: list[str] = []
    training(rounds(), noted=list).trainer().run(trace=lambda explained: lines.append(str(explained)))
    assert any("train/step.steps=4" in line for line in lines)
