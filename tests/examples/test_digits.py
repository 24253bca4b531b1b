"""The digits, with overlays that are named on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.command.conftest import Command
from tests.command.running import arguments, environment

pytest.importorskip("sklearn")
SCRIPT = str(Path(__file__).resolve().parents[2] / "examples" / "digits.py")
WORDS = ("run", SCRIPT, "--overlay", "ema", "--overlay", "early_stop", "early_stop.patience=2", "--run-dir")


def status_of(run_dir: Path) -> dict[str, Any]:
    status = json.loads((run_dir / "status.json").read_text())
    return {name: status[name] for name in ("state", "step", "epoch", "digest")}


def whole_run(folder: Path, command: Command) -> dict[str, Any]:
    """How the run ends that nothing interrupts; `finish` would end it after 20 epochs."""
    whole = command(*WORDS, "whole")
    assert whole.code == 0, whole.err
    assert "early_stop: val/loss has not improved on 0.0" in whole.err
    status = status_of(folder / "whole")
    assert status["state"] == "finished" and 3 <= status["epoch"] < 20
    return status


@pytest.mark.sweep
def test_the_average_improves_until_it_stops_early(folder: Path, command: Command) -> None:
    whole_run(folder, command)


@pytest.mark.sweep
def test_killed_it_is_resumed_exactly(folder: Path, command: Command) -> None:
    with subprocess.Popen([*arguments(*WORDS, "cut")], env=environment(), stderr=subprocess.DEVNULL) as process:
        while len(list((folder / "cut" / "checkpoints").glob("*step*"))) < 2:
            assert process.poll() is None, "it was to be killed before its end"
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    resumed = command(*WORDS, "cut")
    assert resumed.code == 0 and "unchanged: exact" in resumed.err
    assert status_of(folder / "cut") == whole_run(folder, command)
