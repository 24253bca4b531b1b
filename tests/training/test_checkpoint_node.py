"""Promise 14: the node `checkpoint` with `best`: what makes it due, what is ranked, what stays."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, GraphtrainError, Outcome, Run, Trainer, UsageError, checkpoint_folder, node
from graphtrain.storage.named import lineage_in
from graphtrain.storage.retention import rankings_of
from tests.world import World, assert_exact, rows_of, small_fit, world

# Four validations in each of two epochs; the losses that rank first or second so far: all but 6, 7, 8 and the last.
LOSSES = [5.0, 6.0, 4.0, 7.0, 3.0, 8.0, 3.5, 9.0]
ACCURACIES = [0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.7, 0.6]


def ranked(**checkpoint: Any) -> Graph:
    """Two epochs of eight batches, validated every second batch."""
    graph = small_fit(accumulate=1, clip=None, log_every="3 steps", validate_every="2 batches")
    settings = {"every": "never", "keep": 1, "best": "val/loss", "best_mode": "min", "mode": "sync"}
    return graph.set("checkpoint", **{**settings, **checkpoint})


def saved_first(**checkpoint: Any) -> Graph:
    """The same with `checkpoint` asked before `validate`."""
    graph = ranked(**checkpoint).disconnect("decide", "checkpoint")
    return graph.connect("decide", "checkpoint", when="checkpoint_due")


def validated(graph: Graph, losses: list[float] = LOSSES, metric: str = "loss") -> World:
    """A run whose validations give these losses, by the step that they are made at."""

    def validation_step(model: nn.Module, batch: torch.Tensor, step: int) -> dict[str, float]:
        number = max(step // 2 - 1, 0)
        return {metric: losses[number], "accuracy": ACCURACIES[number] if "accurate" in graph.nodes else 0.5}

    return world(
        graph,
        model=lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)),
        scheduler="none",
        data=lambda: list(torch.randn(8, 4, 2)),
        training_step=lambda model, batch: {"loss": model(batch).square().mean(), "error": 1.0},
        val_data=lambda: [torch.ones(4, 2)],
        validation_step=lambda: validation_step,
    )


def run(run_dir: Path, *arguments: Any, until: str | None = None, **more: Any) -> Trainer:
    trainer = validated(*arguments, **more).trainer(run_dir)
    trainer.run(until=until)
    return trainer


def step_of(checkpoint: str) -> int:
    return int(checkpoint.partition("-step-")[2])


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted(path for path in (run_dir / "checkpoints").iterdir() if not path.name.startswith("."))


def steps(run_dir: Path) -> list[int]:
    return [step_of(path.name) for path in checkpoints(run_dir)]


def ranking(run_dir: Path, node_name: str = "") -> list[tuple[int, float]]:
    """Step and value of the best, the best first."""
    rankings = rankings_of([*lineage_in(run_dir)])
    ranking = rankings[node_name] if node_name else next(iter(rankings.values()))
    return [(step_of(name), value) for name, value in ranking.values.items()]


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("checkpoint", "losses", "expected"),
    [
        ({}, LOSSES, [2, 6, 10]),
        ({"every": "5 batches"}, LOSSES, [2, 5, 6, 10, 15]),
        ({}, [math.nan, 5.0, math.inf, -math.inf, 4.0, 4.0, 4.0, 4.0], [4, 10]),
        ({"keep_best": 2}, LOSSES, [2, 4, 6, 10, 14]),
        ({"best_mode": "max"}, LOSSES, [2, 4, 8, 12, 16]),
        ({"best": "val/accuracy"}, LOSSES, [2]),  # an equal value is no better
        ({"best": "epoch/loss"}, LOSSES, []),  # a mean of training is no validation
        ({"every": "5 batches", "best": "val/accuracy"}, LOSSES, [2, 5, 10, 15]),
    ],
)
def test_a_validation_that_ranks_among_the_best_makes_it_due(checkpoint: Any, losses: Any, expected: Any) -> None:
    trainer, due, runs = validated(ranked(**checkpoint), losses).trainer(), [], 0
    for batches in range(1, 17):
        trainer.run(until=f"{batches} batches")
        if trainer.read("checkpoint.runs") > runs:
            runs = trainer.read("checkpoint.runs")
            due.append(batches)
    assert due == expected


@pytest.mark.first(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("graph", [ranked, saved_first])
def test_the_best_stay_and_are_named(graph: Callable[..., Graph], mode: str, tmp_path: Path) -> None:
    run(tmp_path, graph(keep_best=2, mode=mode))
    assert ranking(tmp_path) == [(10, 3.0), (14, 3.5)]
    assert steps(tmp_path) == [10, 14, 16]
    best = Run(tmp_path).status["best"]
    assert (best["metric"], best["value"], step_of(best["checkpoint"])) == ("val/loss", 3.0, 10)


@pytest.mark.full
def test_where_only_the_metric_is_new_it_takes_the_place_of_the_newest(tmp_path: Path) -> None:
    """`checkpoint` comes first in `decide`, so that the validation follows a checkpoint of the same state."""
    trainer = run(tmp_path, saved_first(every="2 batches", keep=100, keep_best=2))
    assert steps(tmp_path) == [*range(2, 17, 2)], "each state once: those of the interval, and of the end"
    assert ranking(tmp_path) == [(10, 3.0), (14, 3.5), (6, 4.0), (2, 5.0), (4, 6.0)]
    assert trainer.read("checkpoint.runs") == 8 + 5


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize(("graph", "every"), [(saved_first, "3 batches"), (ranked, "never")])
def test_what_is_ranked_is_exact_through_cuts(graph: Callable[..., Graph], every: str, tmp_path: Path) -> None:
    it = validated(graph(every=every, keep_best=2).set("accumulate", every=2))
    whole = assert_exact(it, tmp_path, at=4)
    for cut in tmp_path.glob("cut-*"):
        assert (ranking(cut), rows_of(cut)) == (ranking(tmp_path / "whole"), whole.metrics)


@pytest.mark.full
def test_what_was_given_up_is_no_longer_ranked(tmp_path: Path) -> None:
    run(tmp_path, ranked(keep=10, keep_best=2))
    [name] = [path.name for path in checkpoints(tmp_path) if path.name.endswith("step-4")]
    validated(ranked(keep=10, keep_best=2), [0.0, 0.0] + [5.5] * 6).trainer(tmp_path).run(resume=name)
    assert ranking(tmp_path) == [(2, 5.0), (6, 5.5), (4, 6.0)]


@pytest.mark.full
def test_a_fork_has_a_ranking_of_its_own_and_another_mode_ranks_from_then_on(tmp_path: Path) -> None:
    run(tmp_path / "run", ranked(), until="11 batches")
    validated(ranked()).trainer(tmp_path / "fork").run(resume=checkpoints(tmp_path / "run")[-1])
    assert ranking(tmp_path / "fork") == [(14, 3.5)], "3.0 is a checkpoint of the other run"
    assert ranking(tmp_path / "run") == [(10, 3.0)]
    run(tmp_path / "run", ranked(best_mode="max"))
    assert ranking(tmp_path / "run") == [(16, 9.0)]


def test_the_best_is_not_taken_for_saved_where_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At step 6, of 4.0; the 4.5 that follows is the best that can be kept."""
    it, really = validated(ranked(if_failed="continue"), [5.0, 6.0, 4.0, 4.5, 7.0, 7.0, 7.0, 7.0]), Path.open
    trainer = it.trainer(tmp_path)
    trainer.run(until="5 batches")

    def refuse(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if "x" in mode:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(path, mode, *arguments, **named)

    with monkeypatch.context() as patch, contextlib.suppress(GraphtrainError):  # that of the stop
        patch.setattr(Path, "open", refuse)
        trainer.run(until="6 batches")
    trainer.run()
    assert ranking(tmp_path) == [(8, 4.5)]


@pytest.mark.parametrize("graph", [saved_first, ranked])
def test_two_nodes_rank_by_different_metrics(graph: Callable[..., Graph], tmp_path: Path) -> None:
    """At step 2 both are due, at 4 as well, at 6, 10 and 14 the first alone."""
    second = {"every": "never", "keep": 1, "best": "val/accuracy", "mode": "sync"}
    both = graph(keep_best=2).insert("accurate", "checkpoint", at="decide", after="checkpoint", **second)
    assert both.check() == []
    trainer = run(tmp_path, both)
    assert steps(tmp_path) == [4, 10, 14, 16]
    assert ranking(tmp_path) == [(10, 3.0), (14, 3.5), (4, 6.0)] and ranking(tmp_path, "accurate") == [(4, 0.9)]
    assert trainer.load("best:checkpoint") == trainer.load() == checkpoint_folder(tmp_path / "best")
    assert trainer.load("best:accurate") == checkpoint_folder(tmp_path / "best:accurate") == checkpoints(tmp_path)[0]
    status = Run(tmp_path).status
    assert (status["best"]["value"], status["best:accurate"]["value"]) == (3.0, 0.9)
    assert [checkpoint["best"] for checkpoint in Run(tmp_path).checkpoints] == ["best:accurate", "best", "", ""]
    with pytest.raises(UsageError, match=r"`best:exact`: no checkpoint .* was ranked by the node `exact`") as error:
        trainer.load("best:exact")
    assert error.value.hint == "there are: best:checkpoint, best:accurate"


# ---- a metric that nobody records


@pytest.mark.parametrize(
    ("best", "hint"), [("val/los", "did you mean `val/loss`?"), ("val/f1", "known: val/accuracy, val/loss")]
)
def test_a_metric_that_the_validation_does_not_give_is_an_error_there(best: str, hint: str) -> None:
    trainer = validated(ranked(best=best)).trainer()
    with pytest.raises(UsageError, match=f"no row of metrics has `{best}`") as error:
        trainer.run()
    assert hint in error.value.hint
    assert trainer.read("step.steps") == 2 and trainer.state == "stopped"
    trainer.rewire(ranked())
    assert trainer.run() is Outcome.FINISHED, "between two nodes: nothing is half done"


@pytest.mark.full
def test_a_metric_that_no_row_has_is_an_error_once_all_that_record_have_run(tmp_path: Path) -> None:
    """A node of the outermost graph records names that nobody knows before; `end_epoch` runs at step 8."""

    @node(observer=True)
    def count(recorder: Any, *, name: str = "count") -> None:
        recorder.row({name: 1.0})

    def counted(**checkpoint: Any) -> Graph:
        return ranked(**checkpoint).insert("count", count, after="step")

    with pytest.raises(UsageError, match="no row of metrics has `val_los`") as error:
        run(tmp_path, counted(best="val_los", every="4 batches"))
    assert error.value.hint.startswith("did you mean `val/loss`?")
    assert steps(tmp_path)[-1] == 8, "the run can be resumed from there, with another metric"
    assert validated(counted()).trainer(tmp_path).run() is Outcome.FINISHED


@pytest.mark.parametrize(
    ("checkpoint", "reason"),
    [
        ({"best": "loss", "every": "5 batches"}, "no row at a step at which `checkpoint` was due has a finite `loss`"),
        ({"best": "val/f1"}, "no row at a step at which `checkpoint` was due has a finite `val/f1`"),
    ],
)
def test_a_run_that_kept_no_best_says_why(checkpoint: dict[str, Any], reason: str, tmp_path: Path) -> None:
    lines: list[str] = []
    it = validated(ranked(**checkpoint).set("finish", after="8 batches"), [math.nan] * 8, "f1")
    assert it.trainer(tmp_path, lines=lines).run() is Outcome.FINISHED
    assert [line for line in lines if "the best" in line] == [f"no checkpoint was kept as the best: {reason}"]
