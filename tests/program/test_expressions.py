"""Parameters and slots that are given by expressions: against loops by hand, through cuts, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer, node
from graphtrain.errors import ExpressionError, GraphError, GuardError
from tests.program.cuts import assert_cuts_are_exact, assert_same, weights

BATCHES, EPOCHS = 7, 3


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(4, 5, generator=generator), torch.randn(4, 2, generator=generator)) for _ in range(BATCHES)]


def training_step(model: nn.Module, batch: Any) -> torch.Tensor:
    return 9 * nn.functional.mse_loss(model(batch[0]), batch[1])


def resources() -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=0.05),
        "train_data": data(),
        "training_step": training_step,
    }


def fit() -> Graph:
    return Graph.load("fit").set("checkpoint", every="never").set("finish", after=f"{EPOCHS} epochs")


def make_trainer(graph: Graph, run_dir: Any = None, **others: Any) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, notify=lambda line: None, display=None, **{**resources(), **others})


def by_hand(every: Any, max_norm: Any) -> tuple[dict[str, Any], list[int]]:
    """The weights at the end, and the sizes of all windows.

    Arguments:
        every: batches so far, epoch -> how large a window is that opens now.
        max_norm: steps so far, epoch -> the bound of the gradients.
    """
    given = resources()
    model, optimizer = given["model"], given["optimizer"]
    count = batches = steps = 0
    sizes = []
    for epoch in range(EPOCHS):
        for number, batch in enumerate(given["train_data"], start=1):
            batches += 1
            if count == 0:
                window = every(batches, epoch)
            (training_step(model, batch) / window).backward()
            count += 1
            if count == window or number == BATCHES:
                sizes.append(window)
                nn.utils.clip_grad_norm_(model.parameters(), max_norm(steps, epoch))
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                count = 0
    return {name: value.clone() for name, value in model.state_dict().items()}, sizes


@pytest.mark.full
def test_a_bound_and_a_window_by_expressions_equal_the_loop_by_hand_through_cuts() -> None:
    graph = (
        fit()
        .set("accumulate", reads={"every": "1 if next_batch.epoch < 1 else 2 if next_batch.batches % 5 > 0 else 3"})
        .set("clip", reads={"max_norm": "inf if step.steps < 3 else max(0.1, cos(pi * step.steps / 20))"})
    )
    assert graph.check() == []
    expected, sizes = by_hand(
        lambda batches, epoch: 1 if epoch < 1 else 2 if batches % 5 else 3,
        lambda steps, epoch: math.inf if steps < 3 else max(0.1, math.cos(math.pi * steps / 20)),
    )
    assert set(sizes) == {1, 2, 3}
    whole = assert_cuts_are_exact(lambda run_dir: make_trainer(graph, run_dir), (7, 46, 61, 90))
    assert_same(weights(whole), expected)


@pytest.mark.full
def test_a_window_keeps_the_size_with_which_it_opened() -> None:
    """The expression has another value at every batch, so also while a window is open."""
    graph = fit().set("accumulate", reads={"every": "4 - next_batch.batches % 3"})
    expected, sizes = by_hand(lambda batches, epoch: 4 - batches % 3, lambda steps, epoch: math.inf)
    assert set(sizes) == {2, 3, 4}
    trainer = make_trainer(graph)
    while trainer.progress["accumulate"]["count"] != 1:
        trainer.advance()
    opened = trainer.read("accumulate.window")
    while trainer.progress["accumulate"]["count"] == 1:
        trainer.advance()
    assert (opened, trainer.read("accumulate.window"), trainer.read("accumulate.every")) == (3, 3, 2)
    assert not trainer.read("accumulate.full")
    assert_same(weights(assert_cuts_are_exact(lambda run_dir: make_trainer(graph, run_dir), (4, 17, 30))), expected)


@pytest.mark.full
def test_a_window_that_is_open_keeps_its_size_where_the_graph_is_resumed_with_another(tmp_path: Any) -> None:
    said: list[str] = []
    first = make_trainer(fit().set("accumulate", every=4), tmp_path)
    while first.progress["accumulate"]["count"] != 2:
        first.advance()
    first.save()
    second = make_trainer(fit().set("accumulate", every=2), tmp_path)
    second._run.notices._write = said.append
    second.run(until="4 batches")
    expected, sizes = by_hand(lambda batches, epoch: 4 if batches == 1 else 2, lambda steps, epoch: math.inf)
    assert sizes[:2] == [4, 2]
    assert second.progress["accumulate"]["last_count"] == 4
    second.run()
    assert_same(weights(second), expected)


def test_a_function_takes_its_parameters_from_expressions() -> None:
    @node
    def average(model: nn.Module, mean: nn.Module, *, decay: float = 0.5, power: int = 1) -> None:
        """Move an average of the weights towards those of the model."""
        assert type(decay) is float
        assert type(power) is int
        with torch.no_grad():
            for slow, fast in zip(mean.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, (1 - decay) ** power)

    expressions = {"decay": "min(0.99, (1 + average.runs) / (10 + average.runs))", "power": "1 + next_batch.epoch // 2"}
    graph = fit().insert("average", average, after="step", reads=expressions)
    assert graph.check() == []
    trainer = make_trainer(graph, mean=resources()["model"])
    trainer.run()
    model, mean, optimizer = resources()["model"], resources()["model"], None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    runs = 0
    for epoch in range(EPOCHS):
        for batch in data():
            training_step(model, batch).backward()
            optimizer.step()
            average(model, mean, decay=min(0.99, (1 + runs) / (10 + runs)), power=1 + epoch // 2)
            runs += 1
            optimizer.zero_grad()
    assert_same(weights(trainer), {name: value.detach() for name, value in model.state_dict().items()})
    for left, right in zip(trainer.resources["mean"].parameters(), mean.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.full
def test_a_slot_and_a_guard_in_an_expression_through_cuts() -> None:
    @node(writes="norm")
    def measure(model: nn.Module) -> float:
        """The norm of the gradients, a Python number."""
        return float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))

    graph = (
        fit()
        .insert("measure", measure, after="accumulate")
        .disconnect("measure", "exchange")
        .disconnect("measure", "decide")
        .connect("measure", "exchange")
        .connect("accumulate", "decide", when="not_reached")
        .guard("not_reached", "not accumulation_reached")
        .guard("late", "next_batch.epoch >= 1")
        .set("accumulate", every=2)
        .set("clip", reads={"max_norm": "norm / 2 if late else norm"})
    )
    graph = graph.redirect("accumulate", "measure", "measure")
    assert [problem for problem in graph.check() if problem.severity == "error"] == []
    make = lambda run_dir: make_trainer(graph, run_dir)  # noqa: E731
    whole = assert_cuts_are_exact(make, (44, 47, 50))
    given = resources()
    model, optimizer = given["model"], given["optimizer"]
    for epoch in range(EPOCHS):
        for number, batch in enumerate(data(), start=1):
            (training_step(model, batch) / 2).backward()
            if number % 2 == 0 or number == BATCHES:
                norm = measure(model)
                nn.utils.clip_grad_norm_(model.parameters(), norm / 2 if epoch >= 1 else norm)
                optimizer.step()
                optimizer.zero_grad()
    assert_same(weights(whole), dict(model.state_dict()))


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("expressions", "reason"),
    [
        ({"max_norm": "1 / (5 - step.steps)"}, "raised ZeroDivisionError"),
        ({"max_norm": "5.0 - step.steps"}, "expected a number > 0, got 0.0"),
        ({"max_norm": "loss"}, "the slot `loss` holds a Tensor; guards and expressions read Python numbers and text"),
        ({"max_norm": "clip.norm_type", "norm_type": "3.0 - step.steps"}, "clip.norm_type: expected a number > 0"),
    ],
)
def test_a_value_that_does_not_fit_stops_the_run_and_names_the_expression(
    expressions: dict[str, str], reason: str
) -> None:
    graph = fit().set("clip", reads=expressions)
    assert {problem.severity for problem in graph.check()} <= {"warning"}
    with pytest.raises(ExpressionError) as caught:
        make_trainer(graph).run()
    assert reason in str(caught.value)
    name = "norm_type" if "norm_type" in expressions else "max_norm"
    assert f'{name} = "{expressions[name]}"' in str(caught.value)
    assert "clip." in str(caught.value)
    assert ("`.item()`" in str(caught.value.hint)) == ("loss" in reason), "a number is written for what has none"


def test_a_guard_that_reads_a_slot_without_a_value_says_so_and_not_that_it_is_a_tensor() -> None:
    early, late = (fit().guard("ending", or_=text) for text in ("loss < 0", "(step.steps > 0 and loss < 0)"))
    for graph, reason, hint in ((early, "holds nothing yet", "add a condition"), (late, "holds a Tensor", "`.item()`")):
        with pytest.raises(GuardError, match=reason) as caught:
            make_trainer(replace(graph, allow=("G303", "G304"))).run()
        assert hint in caught.value.hint


def test_an_expression_that_fails_where_a_guard_reads_it_is_named_by_the_guard() -> None:
    guard = "end_epoch.runs == begin_epoch.runs or accumulate.every > 9"
    graph = fit().set("accumulate", reads={"every": "3 - step.steps"}).guard("between_epochs", guard)
    with pytest.raises(GuardError, match=r"guard `between_epochs` (.|\n)*accumulate.every: expected an integer > 0"):
        make_trainer(graph).run()


def test_the_loss_is_not_divided_by_an_expression_that_may_change_within_a_window() -> None:
    graph = fit().set("accumulate", reads={"every": "1 + next_batch.batches % 3"})
    (problem,) = graph.set("train_batch", reads={"window": "accumulate.every"}).check()
    assert problem.code == "G409"
    assert 'window = "accumulate.window"' in problem.hint


def test_a_parameter_has_a_value_or_an_expression() -> None:
    graph = fit().set("clip", reads={"max_norm": "1.0 + step.steps"})
    assert "max_norm" not in graph.nodes["clip"].parameters
    assert "max_norm" not in graph.set("clip", max_norm=2.0).nodes["clip"].reads
    text = graph.to_toml().replace("[nodes.clip]", "[nodes.clip]\nmax_norm = 3.0")
    text = text if "max_norm = 3.0" in text else text.replace("clip = { reads", "clip = { max_norm = 3.0, reads")
    with pytest.raises(GraphError, match=r"`clip.max_norm` cannot be given an expression"):
        make_trainer(Graph.loads(text))
