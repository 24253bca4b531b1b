"""What `log` has gathered when the run ends is a row, as `log` would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer


def fit(ending: str, every: str = "4 steps") -> Graph:
    return Graph.load("fit").set("log", every=every).set("finish", after=ending).set("checkpoint", every="never")


def make_trainer(graph: Graph, run_dir: Path | None = None, **more: Any) -> Trainer:
    """The loss of batch n is n, with one sample in each."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "train_data": [torch.full((1, 1), float(n)) for n in range(10)],
        "training_step": lambda model, batch: 0 * model(batch).mean() + batch.mean(),
        **more,
    }
    return Trainer(graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=lambda line: None, **resources)


def losses(trainer: Trainer) -> list[tuple[float, float]]:
    return [(row["step"], row["loss"]) for row in trainer.metrics if "loss" in row]


def test_a_run_that_ends_in_mid_epoch_records_its_last_steps() -> None:
    trainer = make_trainer(fit("7 steps"))
    trainer.run()
    assert trainer.metrics == [
        {"step": 4, "epoch": 0.4, "loss": 1.5, "lr": 0.5},
        {"step": 7, "epoch": 0.7, "loss": 5.0, "lr": 0.5},
    ]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_run_that_continues_has_the_other_rows_of_the_longer_one(is_resumed: bool, tmp_path: Path) -> None:
    trainer = make_trainer(fit("6 steps"), tmp_path)
    trainer.run()
    if is_resumed:
        trainer = make_trainer(fit("10 steps"), tmp_path)
    else:
        trainer.rewire(fit("10 steps"))
    assert trainer.run() is Outcome.FINISHED
    assert losses(trainer) == [(4, 1.5), (6, 4.5), (8, 5.5), (10, 8.5)]
    whole = make_trainer(fit("10 steps"))
    whole.run()
    assert trainer.digest() == whole.digest()
    assert [row for row in trainer.metrics if row["step"] != 6] == whole.metrics


@pytest.mark.full
def test_stopped_and_resumed_the_rows_are_the_same(tmp_path: Path) -> None:
    whole = make_trainer(fit("7 steps"))
    whole.run()
    transitions = 0
    counting = make_trainer(fit("7 steps"))
    while counting.position != "end":
        counting.advance()
        transitions += 1
    for cut in range(1, transitions, 5):
        first = make_trainer(fit("7 steps"), tmp_path / f"{cut}")
        first.advance(cut)
        first.save()
        second = make_trainer(fit("7 steps"), tmp_path / f"{cut}")
        second.run()
        assert second.metrics == whole.metrics


@pytest.mark.parametrize("graph", [fit("7 steps", "never"), fit("7 steps").remove("log")], ids=["never", "no log"])
def test_without_log_there_is_a_row_only_where_there_is_no_other(graph: Graph) -> None:
    trainer = make_trainer(graph)
    trainer.run()
    assert trainer.metrics == [{"step": 7, "epoch": 0.7, "loss": 3.0, "lr": 0.5}]
    validated = make_trainer(graph.set("validate", every="5 steps"), val_data=[torch.ones(1, 1)])
    validated.run()
    assert [list(row) for row in validated.metrics] == [["step", "epoch", "val/loss"]]


def rounds(ending: str, every: str, count: int = 2, clock: str = "") -> Graph:
    """Round after round, each a whole `fit`."""
    graph = Graph.loads(
        f"""
        format = 1
        start = "begin"
        [nodes]
        begin = {{ use = "choice" }}
        train = {{ graph = "fit" }}
        decide = {{ use = "choice" }}
        [guards]
        done = "train.runs == {count}"
        [edges]
        begin = ["train"]
        train = ["decide"]
        decide = ["end if done", "begin"]
        {clock}
        """
    )
    return graph.set("train", graph=fit(ending, every))


def test_a_finish_inside_a_body_ends_no_run() -> None:
    trainer = make_trainer(rounds("3 steps", "never"))
    trainer.run()
    assert trainer.metrics == []


def test_a_body_that_ends_records_its_last_steps_and_the_next_one_begins_with_none() -> None:
    trainer = make_trainer(rounds("7 steps", "4 steps", clock='[clock]\nrounds = "train.runs"'))
    trainer.run()
    each = [{"step": 4, "epoch": 0.4, "loss": 1.5, "lr": 0.5}, {"step": 7, "epoch": 0.7, "loss": 5.0, "lr": 0.5}]
    assert trainer.metrics == [{**row, "rounds": number} for number in range(2) for row in each]


@pytest.mark.full
@pytest.mark.parametrize("interval", [11, pytest.param(1, marks=pytest.mark.sweep)])
def test_the_rows_of_bodies_are_the_same_wherever_it_is_cut(interval: int, tmp_path: Path) -> None:
    graph = rounds("3 steps", "2 steps")
    whole = make_trainer(graph)
    whole.run()
    assert losses(whole) == [(2, 0.5), (3, 2.0)] * 2
    for cut in range(1, 60, interval):
        first = make_trainer(graph, tmp_path / f"{cut}")
        first.advance(cut)
        first.save()
        second = make_trainer(graph, tmp_path / f"{cut}")
        second.run()
        assert second.metrics == whole.metrics
        assert second.digest() == whole.digest()
