"""A run that stands where an ending is reached, which it did not have before, is not trained past it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer, node

BATCHES = 5

SEQUENCE = """
format = 1
name = "sequence"
start = "next_batch"

[nodes]
next_batch = {}
train_batch = {}
step = {}
zero_grad = {}
finish = { after = "100 steps" }

[guards]
done = "finish.due"

[edges]
next_batch = ["train_batch"]
train_batch = ["step"]
step = ["zero_grad"]
zero_grad = ["finish"]
finish = ["end if done", "next_batch"]

[clock]
batches = "next_batch.batches"
steps = "step.steps"
"""


def fit(ending: str, **log: Any) -> Graph:
    graph = Graph.load("fit").set("finish", after=ending).set("checkpoint", every="never")
    return graph.set("log", **log) if log else graph


def make_trainer(graph: Graph, run_dir: Path | None = None, **more: Any) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.full((2, 1), float(n)) for n in range(BATCHES)],
        "training_step": lambda model, batch: model(batch).square().mean(),
        **more,
    }
    return Trainer(graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=lambda line: None, **resources)


def rewired(graph: Graph, until: str, then: Graph, tmp_path: Path) -> Trainer:
    trainer = make_trainer(graph)
    assert trainer.run(until=until) is Outcome.REACHED
    trainer.rewire(then)
    return trainer


def resumed(graph: Graph, until: str, then: Graph, tmp_path: Path) -> Trainer:
    assert make_trainer(graph, tmp_path / "r").run(until=until) is Outcome.REACHED
    return make_trainer(then, tmp_path / "r")


WAYS = pytest.mark.parametrize("get_there", [rewired, resumed])
GetThere = Callable[[Graph, str, Graph, Path], Trainer]


@WAYS
@pytest.mark.parametrize("amount", ["7 steps", "7 batches", "1 epochs", "5 steps", "1.4 epochs"])
def test_an_ending_at_the_position_is_an_ending(get_there: GetThere, amount: str, tmp_path: Path) -> None:
    """Bitwise that of a run that had it from the start, at the end of an epoch too."""
    whole = make_trainer(fit(amount))
    whole.run()
    trainer = get_there(fit("10 epochs"), amount, fit(amount), tmp_path)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == whole.progress["step"]["steps"]
    assert trainer.digest() == whole.digest()
    assert trainer.metrics == whole.metrics
    trainer.rewire(fit("3 epochs"))
    assert trainer.run() is Outcome.FINISHED
    longer = make_trainer(fit("3 epochs"))
    assert longer.run() is Outcome.FINISHED
    assert trainer.digest() == longer.digest()


@WAYS
def test_what_is_due_before_it_is_done_first(get_there: GetThere, tmp_path: Path) -> None:
    trainer = get_there(fit("10 epochs"), "7 steps", fit("7 steps", every="1 steps"), tmp_path)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == 7
    assert [row["step"] for row in trainer.metrics if "loss" in row] == [7]


@WAYS
@pytest.mark.parametrize("then", ["8 steps", "2 epochs"])
def test_an_ending_that_is_not_reached_changes_nothing(get_there: GetThere, then: str, tmp_path: Path) -> None:
    whole = make_trainer(fit(then))
    whole.run()
    trainer = get_there(fit("10 epochs"), "7 steps", fit(then), tmp_path)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.digest() == whole.digest()


@WAYS
@pytest.mark.parametrize(
    "edit",
    [
        lambda graph: graph.set("finish", after="7 steps"),
        lambda graph: graph.guard("done", "step.steps >= 7").set("finish", after="never"),
    ],
    ids=["trigger", "guard"],
)
def test_an_edge_to_the_end_is_an_ending(get_there: GetThere, edit: Callable[[Graph], Graph], tmp_path: Path) -> None:
    graph = Graph.loads(SEQUENCE)
    trainer = get_there(graph, "7 steps", edit(graph), tmp_path)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == 7
    assert trainer.position == "end"
    assert [row["step"] for row in trainer.metrics] == [7], "and it is recorded"
    assert trainer.run() is Outcome.ALREADY_FINISHED


def test_a_guard_that_cannot_be_asked_is_not(tmp_path: Path) -> None:
    """It reads a slot that nothing has written yet: the run comes by there later."""

    @node(writes="norm")
    def measure(loss: Any) -> float:
        return 1.0

    measured = (
        Graph.loads(SEQUENCE)
        .insert("measure", measure, after="train_batch")
        .guard("done", "finish.due and norm > 0")
        .set("finish", after="7 steps")
    )
    trainer = resumed(Graph.loads(SEQUENCE), "7 steps", measured, tmp_path)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == 8


def test_the_same_graph_is_not_asked_again(tmp_path: Path) -> None:
    trainer = make_trainer(fit("10 epochs"))
    trainer.run(until="7 steps")
    trainer.rewire(Graph.load("fit").set("finish", after="10 epochs").set("checkpoint", every="never"))
    assert not trainer._is_other_graph
    assert trainer.run(until="8 steps") is Outcome.REACHED
    assert trainer.progress["step"]["steps"] == 8


def test_after_a_signal_at_that_position(tmp_path: Path) -> None:
    trainer = make_trainer(fit("10 epochs"), tmp_path)

    def stop_at_decide(explanation: Any) -> None:
        if explanation.step == 7 and explanation.choices[0].node == "decide":
            os.kill(os.getpid(), signal.SIGTERM)

    assert trainer.run(trace=stop_at_decide) is Outcome.STOPPED
    assert trainer.position == "next_batch"
    steps = trainer.progress["step"]["steps"]
    again = make_trainer(fit(f"{steps} steps"), tmp_path)
    assert again.run() is Outcome.FINISHED
    assert again.progress["step"]["steps"] == steps == 7
