"""A run whose ending was changed while it was stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer

BATCHES = 5


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
    return Trainer(graph, run_dir=run_dir, device="cpu", display=None, notify=lambda line: None, **resources)


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
def test_an_ending_behind_the_run_is_taken_when_the_graph_asks_next(get_there: GetThere, tmp_path: Path) -> None:
    trainer = get_there(fit("10 epochs"), "7 steps", fit("7 steps"), tmp_path)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == 8


@WAYS
def test_a_raised_ending_continues_the_run(get_there: GetThere, tmp_path: Path) -> None:
    trainer = get_there(fit("10 epochs"), "7 steps", fit("8 steps"), tmp_path)
    assert trainer.run() is Outcome.FINISHED
    trainer.rewire(fit("3 epochs"))
    assert trainer.run() is Outcome.FINISHED
    longer = make_trainer(fit("3 epochs"))
    longer.run()
    assert trainer.digest() == longer.digest()
