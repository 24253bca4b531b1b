"""The study of the page about sweeps: killed in a trial, and started again, it is the study that was never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.command.running import environment
from tests.docs.blocks import read_blocks

optuna: Any = pytest.importorskip("optuna")

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"
SECONDS = 240
Trials = list[tuple[str, dict[str, Any], dict[int, float]]]


def started(folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    for block in read_blocks(PAGE):
        if block.words in (("train.py",), ("study.py",)):
            (folder / block.words[0]).write_text(block.text)
    return subprocess.Popen([sys.executable, "study.py"], cwd=folder, env=environment(), stdout=subprocess.DEVNULL)


def trials_of(folder: Path) -> Trials:
    """State, values and reports of the trials, without those of a killed process, which others repeat."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.log"))
    study = optuna.load_study(study_name="train", storage=optuna.storages.JournalStorage(backend))
    return [
        (trial.state.name, trial.params, trial.intermediate_values)
        for trial in study.trials
        if trial.state.name != "FAIL"
    ]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM], ids=lambda sent: sent.name)
def test_a_study_that_is_killed_is_the_one_that_never_was(sent: signal.Signals, tmp_path: Path) -> None:
    assert started(tmp_path / "whole").wait(SECONDS) == 0
    first = started(tmp_path / "cut")
    checkpoints, deadline = tmp_path / "cut/runs/study/4/checkpoints", time.monotonic() + SECONDS
    while not checkpoints.is_dir() or not os.listdir(checkpoints):
        assert first.poll() is None and time.monotonic() < deadline, "the fifth trial saves nothing"
        time.sleep(0.01)
    while first.poll() is None:  # one that comes when `run` has just ended asks for what is done already
        first.send_signal(sent)
        time.sleep(0.05)
    assert first.returncode in (75, -sent)
    assert started(tmp_path / "cut").wait(SECONDS) == 0
    whole = trials_of(tmp_path / "whole")
    assert trials_of(tmp_path / "cut") == whole
    assert {state for state, _, _ in whole} == {"COMPLETE", "PRUNED"}
