"""Seconds by node, estimated from a few visits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.program.stopwatch import NodeTimes
from tests.resume.rank_runs import run


def slow_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    time.sleep(0.002)
    return (model(batch) - 1).square().mean()


def trainer_of(epochs: int, run_dir: Path | None = None) -> Trainer:
    model = torch.nn.Linear(2, 1)
    return Trainer(
        Graph.load("fit").set("finish", after=f"{epochs} epochs").set("checkpoint", every="never"),
        seed=0,
        run_dir=run_dir,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(2, 2)] * 100,
        val_data=[torch.ones(2, 2)] * 3,
        training_step=slow_step,
        validation_step=lambda model, batch: {"loss": 1.0},
        display=None,
        notify=lambda line: None,
    )


@pytest.mark.full
def test_the_estimate_is_near_what_was_spent(tmp_path: Path) -> None:
    trainer = trainer_of(4, tmp_path / "run")
    trainer.run()
    seconds = trainer.seconds_by_node
    assert next(iter(seconds)) == "train_batch" and list(seconds.values()) == sorted(seconds.values(), reverse=True)
    assert seconds["train_batch"] >= 0.8, "400 visits of 2 ms and more"
    assert {"next_batch", "step", "validate/eval_batch", "end_epoch"} <= seconds.keys()
    assert sum(seconds.values()) < 2 * seconds["train_batch"]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["seconds_by_node"]["train_batch"] == pytest.approx(seconds["train_batch"])


@pytest.mark.full
def test_one_batch_in_128_is_timed() -> None:
    """A clock that counts how often it is asked: twice for each visit that is timed."""
    asked: list[int] = []
    times = NodeTimes(clock=lambda: float(len(asked.append(0) or asked)))
    trainer = trainer_of(3)
    trainer._run.node_times = times
    trainer.run()
    # Of 300 batches and 9 of validations three are timed, with at most 12 visits each; and of each node its second.
    assert 2 * 3 * 5 < len(asked) <= 2 * (3 * 12 + len(trainer.progress))


def test_ranks_time_their_own() -> None:
    seconds: list[dict[str, float]] = []

    def act(trainer: Trainer) -> Any:
        outcome = trainer.run()
        seconds.append(dict(trainer.seconds_by_node))
        return outcome

    run(2, None, act=act)
    assert all({"exchange", "train_batch"} <= each.keys() for each in seconds)
