"""A run of several ranks: as many replay it bit for bit; one process reads it, and replays it up to the sums' order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Trainer
from graphtrain.command.diff import diff
from graphtrain.command.runs import ls, status
from graphtrain.graph import Graph
from graphtrain.kind import StepFunction
from graphtrain.proof.history import RunHistory, Segment
from graphtrain.proof.replay import Replay, parse_moment
from graphtrain.proof.verify import Verdict, verify
from graphtrain.ranks import Ranks, current_ranks
from tests.ranks.fake_ranks import run_ranks
from tests.resume.rank_runs import run, trainer_of


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    run(2, path, is_plain=True, graph=lambda graph: graph.set("checkpoint", every="2 steps"))
    return path


@pytest.mark.full
def test_its_history_is_read_and_not_verified_by_one_process(run_dir: Path) -> None:
    lines: list[str] = []
    segments = RunHistory(run_dir, lines.append).segments()
    assert segments
    reason = "it was trained by 2 processes (--processes 2), whose bits 1 cannot repeat"
    assert {segment.change for segment in segments} == {reason}
    assert lines == [f"skipped the span before 000001-step-2: {reason}"]


def step_of(trained: list[int], on_rank_1: Callable[[int], float] = lambda calls: 1.0) -> StepFunction:
    """A training step whose loss is scaled on rank 1 by a function of the number of calls, which is not saved."""

    def training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        trained.append(1)
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        return loss * on_rank_1(len(trained)) if current_ranks().rank == 1 else loss

    return training_step


def verified(run_dir: Path, **options: Any) -> list[Verdict]:
    """What each of two ranks finds in the newest span."""

    def make(segment: Segment) -> Trainer:
        trained: list[int] = []
        return trainer_of(None, trained=trained, training_step=step_of(trained, **options))

    def program(ranks: Ranks) -> Verdict:
        (*_, newest) = [segment for segment in RunHistory(run_dir, print).segments() if not segment.change]
        return verify(newest, make)

    return run_ranks(2, program)


def trained_run(run_dir: Path, **options: Any) -> Path:
    """A run with dropout and batch norm, of which each rank has its own, saved in mid-window too."""

    def program(ranks: Ranks) -> None:
        trained: list[int] = []
        more: dict[str, Any] = {"trained": trained, "training_step": step_of(trained, **options)}
        trainer_of(run_dir, graph=lambda graph: graph.set("checkpoint", every="5 batches"), **more).run()

    run_ranks(2, program)
    return run_dir


@pytest.mark.full
def test_as_many_ranks_repeat_it_to_the_last_bit(tmp_path: Path) -> None:
    for verdict in verified(trained_run(tmp_path)):
        assert verdict.is_equal and verdict.batches >= 4 and verdict.comparison.tensors > 10, verdict.failure


@pytest.mark.full
def test_what_one_rank_has_lost_is_found_by_all(tmp_path: Path) -> None:
    scaled: Any = {"on_rank_1": lambda calls: 1 + calls / 100}
    first, second = verified(trained_run(tmp_path, **scaled), **scaled)
    assert first.cause == second.cause == "lost"
    differences = [*map(str, first.comparison.differences)]
    assert differences == [*map(str, second.comparison.differences)]
    assert any(difference.endswith("(rank 1)") for difference in differences)  # its own means of the loss
    assert any(difference.endswith("(rank 0)") for difference in differences)  # weights, which both have


@pytest.mark.full
def test_what_one_rank_cannot_repeat_is_found_by_all(tmp_path: Path) -> None:
    random_one: Any = {"on_rank_1": lambda calls: int.from_bytes(os.urandom(2)) / 2**16}
    first, second = verified(trained_run(tmp_path, **random_one), **random_one)
    assert first.cause == second.cause == "unrepeatable"


@pytest.mark.full
def test_it_is_replayed_up_to_the_order_of_sums(run_dir: Path) -> None:
    lines: list[str] = []
    trainer = trainer_of(None, is_plain=True, notify=lines.append)
    start = min((run_dir / "checkpoints").iterdir())
    replay = Replay(trainer, start)
    assert replay.to_amount(parse_moment("3 steps", Graph.load("fit")))
    assert replay.moment.startswith("step 3")
    assert any("1 process instead of 2" in line for line in lines)
    assert trainer.progress["accumulate"]["window"] == 4


@pytest.mark.full
def test_commands_read_it(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ls.callback(run_dir.parent)
    assert "finished" in capsys.readouterr().out
    status.callback(run_dir)
    assert "finished, graph fit" in capsys.readouterr().out
    first, second = sorted(path for path in (run_dir / "checkpoints").iterdir())
    diff.callback(str(first), str(second))
    assert "no difference" in capsys.readouterr().out
