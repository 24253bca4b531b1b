"""A run directory that an earlier version made is resumed, bit for bit: `fixtures` holds some."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer, UsageError
from graphtrain.storage.saved_graph import saved_manifest
from tests.resume.fixtures import make_run_directory
from tests.resume.fixtures.make_run_directory import RATE, graph, result, trainer

FIXTURES = Path(make_run_directory.__file__).parent
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
# An earlier version did not record what `log` had gathered when the run ended; here it is that of the last step.
LAST_ROW = '{"step": 9, "epoch": 3.0, "loss": -655.28125, "largest": -110.63541666666667, "lr": 0.015625}\n'
POSITIONS = {"mid_window": "accumulate", "mid_validation": "validate/eval_batch", "finished": "end"}
CUT = [name for name, position in POSITIONS.items() if position != "end"]


@pytest.fixture
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the run directory that the test names: resuming writes into it."""
    return shutil.copytree(FIXTURES / request.param, tmp_path / request.param)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run comes to if it is made now, and never cut."""
    return made_whole(tmp_path_factory.mktemp("whole"))


def made_whole(run_dir: Path, procedure: Graph | None = None) -> dict[str, Any]:
    run = trainer(run_dir, procedure)
    assert run.run() is Outcome.FINISHED
    return result(run, run_dir)


def of_any_torch(results: dict[str, Any]) -> dict[str, Any]:
    """Results without the digest where torch is not the one that the directories were made with.

    The digest covers the `state_dict` of optimizer and scheduler, in which each version of torch has fields of its own.
    """
    same = torch.__version__.split("+")[0] == EXPECTED["torch"].split("+")[0]
    return {name: value for name, value in results.items() if same or name != "digest"}


@pytest.mark.parametrize(("old", "position"), POSITIONS.items(), indirect=["old"])
def test_an_old_run_stands_where_it_was_cut(old: Path, position: str) -> None:
    said: list[str] = []
    run = trainer(old, notify=said.append)
    if position == "end":
        assert run.run() is Outcome.ALREADY_FINISHED
    else:
        assert run.advance(0) == position
        assert run.read("accumulate.count") == 2
        assert run.resources["model"].weight.grad is not None
        assert not run.resources["model"].bias.requires_grad
    assert run.position == position
    line = next(line for line in said if line.startswith("resumed "))
    assert "wording of guard window_cut" in line and "exact" in line
    assert line.startswith(f"resumed {old}: step ")
    assert "checkpoint" not in line, "that it remembers more now is nothing that the training depends on"
    assert ("window 2/3" in line) == (position != "end")
    assert ("repeating 3 batches" in line) == (old.name == "mid_window")


@pytest.mark.parametrize("old", POSITIONS, indirect=True)
def test_an_old_run_ends_in_the_bits_of_the_run_never_cut(old: Path, whole: dict[str, Any]) -> None:
    said: list[str] = []
    run = trainer(old, notify=said.append)
    assert run.run() is (Outcome.FINISHED if old.name in CUT else Outcome.ALREADY_FINISHED)
    assert any(line.startswith(f"resumed {old}: step ") for line in said)
    resumed = of_any_torch(result(run, old))
    assert resumed == of_any_torch(EXPECTED["whole"])
    assert resumed == of_any_torch(whole)


@pytest.mark.parametrize("old", POSITIONS, indirect=True)
def test_an_old_run_with_a_raised_ending_ends_in_the_bits_of_the_longer_run(old: Path, tmp_path: Path) -> None:
    run = trainer(old, graph("3 epochs"))
    assert run.run() is Outcome.FINISHED
    resumed = of_any_torch(result(run, old))
    longer = EXPECTED["longer"]
    assert resumed == of_any_torch({**longer, "metrics": longer["metrics"] + LAST_ROW})
    assert resumed == of_any_torch(made_whole(tmp_path / "whole", graph("3 epochs")))


@pytest.mark.parametrize("old", POSITIONS, indirect=True)
def test_the_graph_of_an_old_run_can_be_read_and_resumed(old: Path, tmp_path: Path) -> None:
    saved = Graph.load(old)
    assert saved.to_json() == saved_manifest(old)[1]["graph"], "what is resumed is what was saved"
    assert not saved.diff(graph()).matters, "guards are worded in another way since, and the size of a window is read"
    script = runpy.run_path(str(FIXTURES / "make_run_directory.py"))  # its kinds are found by name from here on
    assert saved.check() == []
    run = script["trainer"](old, saved)
    run.run()
    assert of_any_torch(result(run, old)) == of_any_torch(EXPECTED["whole"])


@pytest.mark.parametrize("old", POSITIONS, indirect=True)
def test_the_status_of_an_old_run_is_shown(old: Path) -> None:
    command = [sys.executable, "-m", "graphtrain", "status", str(old)]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    state = "finished" if old.name == "finished" else "stopped"
    assert shown.startswith(f"{old}: {state}, graph fit")
    [checkpoint] = (old / "checkpoints").iterdir()
    assert f"newest checkpoint {checkpoint.name}" in shown
    assert json.loads((old / "status.json").read_text())["digest"] in shown


@pytest.mark.parametrize("old", POSITIONS, indirect=True)
def test_another_learning_rate_is_refused_until_the_saved_one_is_chosen(old: Path) -> None:
    with pytest.raises(UsageError, match=r"optimizer\.lr: 0\.25 -> 0\.5"):
        trainer(old, rate=2 * RATE).run()
    said: list[str] = []
    run: Trainer = trainer(old, rate=2 * RATE, notify=said.append)
    run.run(from_saved=True)
    assert any("optimizer.lr: 0.25 -> 0.5 (kept as saved)" in line for line in said)
    assert of_any_torch(result(run, old)) == of_any_torch(EXPECTED["whole"])


@pytest.mark.parametrize("old", ["mid_window"], indirect=True)
def test_another_learning_rate_can_be_taken(old: Path) -> None:
    run = trainer(old, rate=2 * RATE)
    run.run(from_setup="optimizer,scheduler")
    other = of_any_torch(result(run, old))
    assert other == of_any_torch(EXPECTED["other rate"])
    assert other["weights"]["model.weight"] != EXPECTED["whole"]["weights"]["model.weight"]
