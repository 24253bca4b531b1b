"""What a step function is given as `step`, `epoch` and `batch_index`: the values that a loop written by hand has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer

Row = tuple[str, int, int, int]

# Rounds around the graph fit: each trains two epochs, and validates.
ROUNDS = """
format = 1
name = "rounds"
start = "next_batch"

[nodes]
next_batch = { reads = { train_data = "rounds" } }
train = { graph = "fit" }

[guards]
exhausted = "next_batch.exhausted or next_batch.last"

[edges]
next_batch = ["train"]
train = ["end if exhausted", "next_batch"]

[clock]
batches = "next_batch.batches"
"""


def fit() -> Graph:
    return (
        Graph.load("fit")
        .set("accumulate", every=2)
        .set("validate", every="0.5 epochs")
        .set("checkpoint", every="never")
        .set("finish", after="2 epochs")
    )


def nested() -> Graph:
    graph = Graph.loads(ROUNDS)
    for node, parameters in {
        "accumulate": {"every": 2},
        "validate": {"every": "0.5 epochs"},
        "checkpoint": {"every": "never"},
        "finish": {"after": "2 epochs"},
    }.items():
        graph = graph.set(f"train/{node}", **parameters)
    return graph


def by_hand(batches: int, validation_batches: int) -> list[Row]:
    """Two epochs with windows of two batches, validated in the middle and at the end of each."""
    rows: list[Row] = []
    step = 0
    for epoch in range(2):
        for index in range(batches):
            rows.append(("train", step, epoch, index))
            if index % 2 == 1 or index == batches - 1:
                step += 1
            if index + 1 in (batches // 2, batches):
                rows += [("validate", step, epoch, batch) for batch in range(validation_batches)]
    return rows


def make_trainer(graph: Graph, rows: list[Row], **resources: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)

    def training_step(model: nn.Module, batch: Any, step: int, epoch: int, batch_index: int) -> Any:
        rows.append(("train" if model.training else "validate", step, epoch, batch_index))
        return model(batch).square().mean()

    def validation_step(model: nn.Module, batch: Any, step: int, epoch: int, batch_index: int) -> Any:
        rows.append(("validate", step, epoch, batch_index))
        return model(batch).square().mean()

    supplied = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.ones(2, 1)] * 4,
        "val_data": [torch.ones(2, 1)] * 2,
        "training_step": training_step,
        "validation_step": validation_step,
    }
    return Trainer(graph, seed=0, device="cpu", display=None, notify=lambda line: None, **{**supplied, **resources})


@pytest.mark.parametrize("resources", [{}, {"validation_step": None}], ids=["validation_step", "training_step"])
def test_as_by_hand(resources: dict[str, Any]) -> None:
    rows: list[Row] = []
    make_trainer(fit(), rows, **resources).run()
    assert rows == by_hand(4, 2)
    assert {row[2] for row in rows if row[0] == "validate"} == {0, 1}


def test_a_training_graph_inside_a_loop_counts_for_itself() -> None:
    """Its steps and epochs begin again in every round, for the evaluation inside it too."""
    rows: list[Row] = []
    make_trainer(nested(), rows, rounds=[torch.zeros(1)] * 3).run()
    assert rows == by_hand(4, 2) * 3


@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "interval"),
    [
        (fit, 17),
        (nested, 41),
        pytest.param(fit, 1, marks=pytest.mark.sweep),
        pytest.param(nested, 1, marks=pytest.mark.sweep),
    ],
)
def test_the_same_after_a_resume(make: Callable[[], Graph], interval: int, tmp_path: Any) -> None:
    rounds = {"rounds": [torch.zeros(1)] * 2} if make is nested else {}
    whole: list[Row] = []
    transitions = 0
    trainer = make_trainer(make(), whole, **rounds)
    while trainer.position != "end":
        trainer.advance()
        transitions += 1
    for cut in range(1, transitions, interval):
        rows: list[Row] = []
        run_dir = tmp_path / f"{cut}"
        first = make_trainer(make(), rows, run_dir=run_dir, **rounds)
        first.advance(cut)
        first.save()
        make_trainer(make(), rows, run_dir=run_dir, **rounds).run()
        assert rows == whole


def test_where_nothing_trains_it_is_the_outermost_graph_that_counts() -> None:
    rows: list[tuple[int, int]] = []

    def validation_step(model: nn.Module, batch: Any, epoch: int, batch_index: int) -> Any:
        rows.append((epoch, batch_index))
        return model(batch).square().mean()

    outer = Graph.loads(ROUNDS.replace('graph = "fit"', 'graph = "evaluate"'))
    make_trainer(
        outer,
        [],
        rounds=[torch.zeros(1)] * 2,
        validation_step=validation_step,
        optimizer=None,
        training_step=None,
        train_data=None,
    ).run()
    assert rows == [(0, 0), (0, 1)] * 2


def test_stage_loader_and_last_batch() -> None:
    """What a function is called for, which of several loaders its batch is of, and whether that is the last."""
    rows: list[tuple[Any, ...]] = []

    def step(model: nn.Module, batch: Any, stage: str, loader_index: int, is_last: bool) -> Any:
        rows.append((stage, loader_index, is_last))
        return model(batch).square().mean()

    loaders = {"clean": [torch.ones(2, 1)], "noisy": [torch.ones(2, 1)] * 2}
    graph = fit().set("validate", every="1 epochs").set("finish", after="1 epochs")
    make_trainer(graph, [], val_data=loaders, training_step=step, validation_step=step).run()
    trained = [("train", 0, False)] * 3 + [("train", 0, True)]
    assert rows == [*trained, ("validate", 0, False), ("validate", 1, False), ("validate", 1, True)]


@pytest.mark.parametrize(("graph", "stage"), [("test", "test"), ("predict", "predict")])
def test_stage_of_a_graph_of_its_own(graph: str, stage: str, tmp_path: Any) -> None:
    stages: list[str] = []

    def step(model: nn.Module, batch: Any, stage: str) -> Any:
        stages.append(stage)
        return model(batch)[:, 0].mean() if stage == "test" else model(batch)

    more = {"predictions_file": str(tmp_path / "out.jsonl")} if stage == "predict" else {}
    Trainer(
        Graph.load(graph),
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=nn.Linear(1, 1),
        **{f"{stage}_data": [torch.ones(2, 1)], f"{stage}_step": step, **more},
    ).run()
    assert stages == [stage]


def test_a_resource_of_the_name_stage_comes_first() -> None:
    stages: list[str] = []

    def step(model: nn.Module, batch: Any, stage: str) -> Any:
        stages.append(stage)
        return model(batch).square().mean()

    make_trainer(fit().set("finish", after="1 steps"), [], training_step=step, validation_step=None, stage="mine").run()
    assert set(stages) == {"mine"}


def test_a_row_is_recorded_inside_a_step() -> None:
    def step(model: nn.Module, batch: Any, recorder: Any, batch_index: int, stage: str) -> Any:
        if stage == "train" and batch_index == 1:
            recorder.row({"seen": 1.0})
        return model(batch).square().mean()

    trainer = make_trainer(fit(), [], training_step=step, validation_step=None)
    trainer.run()
    assert [row["step"] for row in trainer.metrics if "seen" in row] == [0, 2]
