"""Nodes of a run of several ranks are counted ahead as often as they run."""

from __future__ import annotations

import pytest
import torch

from graphtrain import Graph, Loader, Trainer
from graphtrain.program.whole_run import PlannedRun
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks

# The batches of an epoch, `accumulate.every`, `log.every`, `finish.after`.
SETTINGS = [
    (23, 3, "1 batches", "3 epochs"),
    (23, 1, "2 steps", "31 batches"),
    (5, 4, "3 batches", "7 epochs"),
    (8, 2, "5 samples", "100 samples"),
    (1, 2, "1 epochs", "9 epochs"),
    (12, 5, "0.25 epochs", "2.5 epochs"),
]
NODES = ("step", "next_batch", "train_batch", "log", "exchange")


def counted(setting: tuple[int, int, str, str], nodes: tuple[str, ...]) -> tuple[dict[str, int], dict[str, int]]:
    """How often each node has run, and how often it was counted to."""
    batches, every, log, after = setting
    graph = Graph.load("fit").set("accumulate", every=every).set("log", every=log).set("finish", after=after)
    graph = graph.set("checkpoint", every="never")
    model = torch.nn.Linear(1, 1)
    data = Loader(torch.zeros(batches * 2 - 1, 1), batch_size=2)
    trainer = Trainer(
        graph,
        seed=0,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        train_data=data,
        val_data=Loader(torch.zeros(3, 1), batch_size=1),
        training_step=lambda model, batch: model(batch).sum(),
    )
    trainer.run()
    planned = PlannedRun(graph)
    runs = {node: trainer.progress[node]["runs"] for node in nodes}
    return runs, {node: planned.steps(data, node, val_data=range(3)) for node in runs}


@pytest.mark.second(2)
@pytest.mark.first(1)
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_counted_ahead_is_what_runs(setting: tuple[int, int, str, str], world_size: int) -> None:
    def program(ranks: Ranks) -> tuple[dict[str, int], dict[str, int]]:
        return counted(setting, NODES)

    for runs, planned in run_ranks(world_size, program):
        assert planned == runs


def test_a_long_run_is_counted_at_once() -> None:
    graph = Graph.load("fit").set("accumulate", every=3).set("finish", after="20000 epochs")

    def program(ranks: Ranks) -> int:
        return PlannedRun(graph).steps(range(1_000_003), "train_batch")

    # 1,000,003 batches in windows of 6, each in 3 rounds of 2; the last window of an epoch has one batch.
    assert run_ranks(2, program) == [20_000 * (3 * 166_667 + 1)] * 2
