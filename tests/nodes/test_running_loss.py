"""The overlay `running_loss`: the mean loss of the last windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, GraphError, Loader, Trainer
from graphtrain.report.recorder import Means
from tests.ranks.fake_ranks import run_ranks

FIT = Graph.load("fit").set("accumulate", every=2).set("log", every="2 steps").set("checkpoint", every="never")


def make(
    graph: Graph, run_dir: Path | None = None, losses: list[list[float]] | None = None, *, without_dropout: bool = False
) -> Trainer:
    torch.manual_seed(0)
    dropout = torch.nn.Dropout(0.0 if without_dropout else 0.2)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), dropout, torch.nn.Linear(4, 1)).double()

    def training_step(model: Any, batch: torch.Tensor, step: int) -> torch.Tensor:
        loss = model(batch).square().mean()
        if losses is not None:
            losses.append([step, loss.item(), len(batch)])
        return loss

    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        not_state=["training_step<losses>"],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        train_data=Loader(torch.randn(19, 3, dtype=torch.float64), batch_size=4, shuffle=True),  # 5, the last one of 3
        training_step=training_step,
    )


def expected(losses: list[list[float]], step: int, windows: int) -> float:
    """The mean over the last windows before a step, of each the mean over its samples."""
    means = []
    for number in range(max(step - windows, 0), step):
        of_window = [(loss, samples) for at, loss, samples in losses if at == number]
        means.append(sum(loss * samples for loss, samples in of_window) / sum(samples for _, samples in of_window))
    return sum(means) / len(means)


@pytest.mark.parametrize("windows", [1, 3, 20])
def test_it_is_the_mean_over_the_last_windows(windows: int) -> None:
    losses: list[list[float]] = []
    graph = FIT.overlay("running_loss").set("running_loss", windows=windows).set("finish", after="11 steps")
    trainer = make(graph, losses=losses)
    trainer.run()
    rows = [row for row in trainer.metrics if "running/loss" in row]
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 11]
    for row in rows:
        assert row["running/loss"] == pytest.approx(expected(losses, int(row["step"]), windows), rel=1e-12)
    assert trainer.snapshot().metrics["running/loss"] == rows[-1]["running/loss"]


def test_rows_without_it_are_as_they_were() -> None:
    plain, running = make(FIT), make(FIT.overlay("running_loss"))
    plain.run(until="5 steps"), running.run(until="5 steps")
    assert [{**row, "running/loss": 0.0} for row in plain.metrics if "loss" in row] == [
        {**row, "running/loss": 0.0} for row in running.metrics if "loss" in row
    ]


@pytest.mark.full
@pytest.mark.parametrize("interval", [40, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_cut_anywhere_is_exact(interval: int, tmp_path: Path) -> None:
    graph = FIT.overlay("running_loss").set("running_loss", windows=3).set("finish", after="7 steps")
    whole, edges = make(graph), 0
    while whole.position != "end":
        whole.advance()
        edges += 1
    whole.run()
    for cut in range(7, edges, interval):
        first = make(graph, tmp_path / str(cut))
        first.advance(cut)
        first.save()
        second = make(graph, tmp_path / str(cut))
        second.run()
        assert second.metrics == whole.metrics, f"cut before {first.position}"
        assert second.digest() == whole.digest()


def test_losses_wait_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(means: Means) -> None:
        raise AssertionError("values are transferred to the host")

    trainer = make(FIT.overlay("running_loss").set("log", every="9 steps"))
    monkeypatch.setattr(Means, "settle", settle)
    while trainer.progress["running_loss"]["ended"] < 2:
        trainer.advance()


@pytest.mark.full
def test_ranks_record_what_one_process_does(tmp_path: Path) -> None:
    graph = FIT.overlay("running_loss").set("running_loss", windows=3).set("finish", after="6 steps")

    def rows(graph: Graph, run_dir: Path | None = None, cut: int = 0) -> list[dict[str, float]]:
        trainer = make(graph, run_dir, without_dropout=True)
        if cut:
            trainer.advance(cut)
            trainer.save()
        else:
            trainer.run()
        return trainer.metrics

    alone, of_two = rows(graph), graph.set("accumulate", every=1)
    whole = run_ranks(2, lambda ranks: rows(of_two))
    for metrics in whole:
        for row, other in zip(metrics, alone, strict=True):
            assert row == pytest.approx(other, rel=1e-9)
    run_ranks(2, lambda ranks: rows(of_two, tmp_path, 31))
    assert run_ranks(2, lambda ranks: rows(of_two, tmp_path)) == whole


def test_another_metric_can_be_followed_and_one_that_is_not_there_is_reported_once() -> None:
    graph = FIT.overlay("running_loss").set("running_loss", metric="accuracy").set("finish", after="4 steps")
    trainer = make(graph)
    step = lambda model, batch: {"loss": model(batch).square().mean(), "accuracy": 0.25}  # noqa: E731
    missing = ["running_loss: the last windows have no `accuracy`; they have loss"]
    for training_step, values, lines in ((step, [0.25, 0.25], []), (trainer.resources["training_step"], [], missing)):
        said: list[str] = []
        resources = {**trainer.resources, "training_step": training_step}
        again = Trainer(graph, display=None, notify=said.append, **resources)
        again.run()
        assert [row["running/accuracy"] for row in again.metrics if "running/accuracy" in row] == values
        assert [line for line in said if "running_loss" in line] == lines


def test_two_nodes_of_one_metric_are_refused() -> None:
    twice = FIT.overlay("running_loss").insert("slower", "running_loss", after="running_loss", windows=100)
    with pytest.raises(GraphError, match="`running_loss` and `slower` both record `running/loss`") as caught:
        make(twice)
    assert "slower.metric" in caught.value.problems[0].hint


def test_two_metrics_are_followed_side_by_side() -> None:
    both = FIT.overlay("running_loss").set("running_loss", windows=3).set("finish", after="4 steps")
    both = both.insert("running_scale", "running_loss", after="running_loss", metric="scale", windows=2)
    step = lambda model, batch: {"loss": model(batch).square().mean(), "scale": batch.abs().mean()}  # noqa: E731

    def rows(graph: Graph) -> list[dict[str, float]]:
        again = Trainer(graph, display=None, notify=lambda line: None, **{**make(FIT).resources, "training_step": step})
        again.run()
        return [row for row in again.metrics if "loss" in row]

    loss, scale = rows(both.remove("running_scale")), rows(both.remove("running_loss"))
    assert [{**of_loss, **of_scale} for of_loss, of_scale in zip(loss, scale, strict=True)] == rows(both)


def test_nothing_is_recorded_of_a_node_that_a_rewiring_takes_away() -> None:
    graph = FIT.set("log", every="1 steps").set("finish", after="5 steps")
    trainer = make(graph.overlay("running_loss"))
    trainer.run(until="2 steps")
    trainer.rewire(graph)
    trainer.run()
    assert [row["step"] for row in trainer.metrics if "running/loss" in row] == [1, 2]
    trainer = make(graph)
    trainer.run(until="2 steps")
    trainer.rewire(graph.overlay("running_loss"))
    trainer.run(until="3 steps")
    trainer.rewire(graph.overlay("running_loss").set("clip", max_norm=9.0))
    trainer.run()
    assert [row["step"] for row in trainer.metrics if "running/loss" in row] == [3, 4, 5]
