"""A run of several ranks, looked at by one process: its history is read, and replayed up to the order of sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphtrain.command.diff import diff_command
from graphtrain.command.ls import ls_command
from graphtrain.command.status import status_command
from graphtrain.graph import Graph
from graphtrain.replay.history import RunHistory
from graphtrain.replay.replay import Replay
from graphtrain.run.breakpoints import parse_moment
from tests.resume.rank_runs import run, trainer_of


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    run(2, path, is_plain=True, graph=lambda graph: graph.set("checkpoint", every="2 steps"))
    return path


def test_its_history_is_read_and_not_verified_by_one_process(run_dir: Path) -> None:
    lines: list[str] = []
    segments = RunHistory(run_dir, lines.append).segments()
    assert segments
    assert {segment.change for segment in segments} == {
        "it was trained by 2 processes, of which one cannot repeat the bits"
    }
    assert lines == [
        "skipped the span before 000001-step-2: it was trained by 2 processes, of which one cannot repeat the bits"
    ]


def test_it_is_replayed_up_to_the_order_of_sums(run_dir: Path) -> None:
    lines: list[str] = []
    trainer = trainer_of(None, is_plain=True, notify=lines.append)
    start = min((run_dir / "checkpoints").iterdir())
    replay = Replay(trainer, start)
    assert replay.to_amount(parse_moment("3 steps", Graph.load("fit")))
    assert replay.moment.startswith("step 3")
    assert any("1 process instead of 2" in line for line in lines)
    assert trainer.progress["accumulate"]["window"] == 4


def test_commands_read_it(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ls_command(run_dir.parent, as_json=False)
    assert "finished" in capsys.readouterr().out
    status_command(run_dir, as_json=False)
    assert "finished, graph fit" in capsys.readouterr().out
    first, second = sorted(path for path in (run_dir / "checkpoints").iterdir())
    diff_command(str(first), str(second), None, [], exit_code=False)
    assert "loss" in capsys.readouterr().out
