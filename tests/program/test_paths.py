"""Guards, expressions and clocks that read inside bodies: against loops by hand, through cuts in the body too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer, Trigger, node
from tests.program.cuts import assert_cuts_are_exact, assert_same, weights
from tests.program.test_expressions import BATCHES, data, resources, training_step

STEPS = (BATCHES + 1) // 2  # of a round: an epoch of windows of two

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
inner = "train/step.steps"
"""


INNER = Trigger("1 inner")


@node
def shrink(model: nn.Module, *, share: float = 0.0) -> None:
    """Make the weights smaller by a share."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 - share)


def rounds(noted: list[int] | None = None) -> Graph:
    @node
    def note_steps(steps: int, *, every: Trigger = INNER) -> None:
        """Note where it was due."""
        if noted is not None:
            noted.append(steps)

    share = {"share": "train/step.steps / (10 * max(1, train.runs))"}
    graph = (
        Graph.loads(ROUNDS)
        .replace("shrink", shrink, reads=share)
        .replace("note", note_steps, every="3 inner", reads={"steps": "train.runs"})
    )
    for path, parameters in {
        "accumulate": {"every": 2},
        "checkpoint": {"every": "never"},
        "finish": {"after": "1 epochs"},
    }.items():
        graph = graph.set(f"train/{path}", **parameters)
    return graph


def make_trainer(graph: Graph, run_dir: Any = None) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, notify=lambda line: None, display=None, **resources())


def by_hand() -> tuple[dict[str, Any], int]:
    given = resources()
    model, optimizer = given["model"], given["optimizer"]
    runs = 0
    while True:
        for number, batch in enumerate(data(), start=1):
            (training_step(model, batch) / 2).backward()
            if number % 2 == 0 or number == BATCHES:
                optimizer.step()
                optimizer.zero_grad()
        runs += 1
        shrink(model, share=STEPS / (10 * runs))
        if runs * STEPS / 2 >= 6:
            return dict(model.state_dict()), runs


@pytest.mark.full
def test_what_reads_inside_a_body_equals_the_loop_by_hand_through_cuts() -> None:
    graph = rounds()
    assert graph.check() == []
    whole = assert_cuts_are_exact(lambda run_dir: make_trainer(graph, run_dir), (3, 30, 51, 62, 100))
    expected, runs = by_hand()
    assert whole.progress["train"]["runs"] == runs == 3
    assert_same(weights(whole), expected)


@pytest.mark.full
def test_a_trigger_counts_from_nothing_each_time_that_the_body_begins(tmp_path: Any) -> None:
    noted: list[int] = []
    make_trainer(rounds(noted)).run()
    assert noted == [1, 2, 3]
    noted.clear()
    first = make_trainer(rounds(noted), tmp_path)
    while first.progress["train"]["runs"] < 1 or first.position != "train/step":
        first.advance()
    first.save()
    make_trainer(rounds(noted), tmp_path).run()
    assert noted == [1, 2, 3]


def test_what_is_read_in_a_body_that_is_bypassed_is_as_before_it_ever_ran() -> None:
    graph = (
        Graph.load("fit")
        .set("finish", after="1 epochs")
        .guard("log_due", "log.due and validate/next_batch.batches == 0 and not validate/next_batch.last")
        .clock("seen", "validate/next_batch.batches")
        .set("checkpoint", every="1 seen")
        .set("clip", reads={"max_norm": "1.0 + validate/next_batch.batches"})
    )
    assert graph.check() == []
    trainer = make_trainer(graph)
    trainer.run()
    assert trainer.progress["checkpoint"]["runs"] == 0
    assert (trainer.read("clip.max_norm"), trainer.read("validate/next_batch.last")) == (1.0, False)
    assert trainer.explain().node == "finish"


def test_explain_shows_a_path() -> None:
    trainer = make_trainer(rounds())
    while trainer.position != "decide":
        trainer.advance()
    trainer.advance()
    assert "train/step.steps=4" in str(trainer.explain())
