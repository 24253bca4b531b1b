"""Checkpoints of several processes, over gloo: cut, resumed by two, by one, and after a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from graphtrain.errors import RankFailedError
from graphtrain.graph import Graph
from graphtrain.ranks import Alone, current_ranks, using_ranks
from graphtrain.resume import rank_saves
from tests.ranks.processes import run_processes
from tests.resume.rank_runs import trainer_of


def weights(trainer: Any) -> list[float]:
    return [number for parameter in trainer.resources["model"].parameters() for number in parameter.flatten().tolist()]


def cut_and_resumed(run_dir: Path) -> dict[str, Any]:
    ranks = current_ranks()
    whole = trainer_of(None)
    whole.run()
    exact = trainer_of(run_dir / "exact")
    exact.advance(6)
    exact.save()
    resumed = trainer_of(run_dir / "exact")
    resumed.run()
    plain = trainer_of(None, is_plain=True)
    plain.run()
    first = trainer_of(run_dir / "elastic", is_plain=True)
    first.advance(12)  # behind a window of both
    first.save()
    if ranks.rank == 0:
        with using_ranks(Alone()):
            second = trainer_of(run_dir / "elastic", is_plain=True)
            while second.progress["step"]["steps"] < 2 or second.progress["accumulate"]["count"]:
                second.advance()
            second.save()
        ranks.publish("saved by one", b"")
    assert ranks.read("saved by one", 60.0) is not None
    lines: list[str] = []
    third = trainer_of(run_dir / "elastic", is_plain=True, notify=lines.append)
    third.run()
    return {
        "exact": (whole.digest(), resumed.digest()),
        "weights": (weights(plain), weights(third)),
        "window": third.progress["accumulate"]["window"],
        "line": [line for line in lines if line.startswith("resumed")],
    }


@pytest.mark.full
def test_two_processes_then_one_then_two(tmp_path: Path) -> None:
    first, second = run_processes(2, cut_and_resumed, tmp_path)
    for end in (first, second):
        assert end["exact"][0] == end["exact"][1]
        assert end["weights"][1] == pytest.approx(end["weights"][0], abs=1e-12)
        assert end["window"] == 4
    assert first["exact"] != second["exact"], "each rank has its own buffers"
    assert "2 processes instead of 1 (other random numbers)" in first["line"][0]


def killed(run_dir: Path) -> None:
    """Rank 1 dies between its files and the manifest of the second checkpoint."""
    write, calls = rank_saves.write_files, []

    def write_and_die(*arguments: Any) -> Any:
        written = write(*arguments)
        calls.append(written)
        if len(calls) == 2 and current_ranks().rank == 1:
            os._exit(9)
        return written

    rank_saves.write_files = write_and_die  # type: ignore[assignment]
    trainer = trainer_of(run_dir / "run", graph=every_step)
    try:
        trainer.run()
    except RankFailedError as error:
        (run_dir / "message").write_text(str(error))


def every_step(graph: Graph) -> Graph:
    return graph.set("checkpoint", every="1 steps")


def after_a_kill(run_dir: Path) -> tuple[str, str, list[str]]:
    whole = trainer_of(None, graph=every_step)
    whole.run()
    found = sorted(path.name for path in (run_dir / "run" / "checkpoints").iterdir())
    resumed = trainer_of(run_dir / "run", graph=every_step)
    resumed.run()
    return whole.digest(), resumed.digest(), found


@pytest.mark.sweep
def test_a_rank_that_is_killed_between_its_file_and_the_manifest_leaves_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises((AssertionError, EOFError)):
        run_processes(2, killed, tmp_path)
    assert "rank 1" in (tmp_path / "message").read_text()
    for whole, resumed, found in run_processes(2, after_a_kill, tmp_path):
        assert resumed == whole
        assert found == ["000001-step-1"]
