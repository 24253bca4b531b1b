"""`--overlay`: for every command that takes a graph, and on a resume."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from graphtrain import Graph
from tests.looking.conftest import Command
from tests.looking.running import TINY

VALIDATED = TINY.replace('"training_step"', '"val_data": [torch.ones(2, 2)], "training_step"')
BOTH = ("--overlay", "ema", "--overlay", "early_stop")


@pytest.fixture
def script(tiny: Path) -> Path:
    (tiny / "tiny.py").write_text(VALIDATED)
    return tiny


def place_of(run_dir: Path) -> tuple[int, str, str]:
    status = json.loads((run_dir / "status.json").read_text())
    return status["step"], status["state"], status["digest"]


@pytest.mark.full
def test_a_run_with_overlays_stops_early_and_is_resumed_exactly(script: Path, command: Command) -> None:
    # A rate of zero improves nothing; the average of weights that stand still stands still.
    words = ("run", "tiny.py", "lr=0", *BOTH, "early_stop.patience=2", "ema.decay=0.5", "finish.after=9 epochs")
    whole = command(*words, "--run-dir", "whole")
    assert whole.code == 0
    assert "early_stop: val/loss has not improved" in whole.err
    assert place_of(script / "whole")[:2] == (12, "finished"), "three epochs of four batches"
    assert command(*words, "--run-dir", "cut", "--until", "6 steps").code == 0
    resumed = command(*words, "--run-dir", "cut")
    assert "unchanged: exact" in resumed.err
    assert place_of(script / "cut") == place_of(script / "whole")
    assert Graph.load(script / "whole").layers.names == ("ema", "early_stop")
    further = command(
        *words[:-3], "early_stop.patience=4", "ema.decay=0.5", "finish.after=9 epochs", "--run-dir", "cut"
    )
    assert "early_stop.patience 2 -> 4" in further.err
    assert place_of(script / "cut")[:2] == (20, "finished"), "a patience that is raised trains on"


def test_the_command_of_a_resume_names_the_overlays(script: Path, command: Command) -> None:
    result = command("run", "tiny.py", *BOTH, "--until", "2 steps", "--run-dir", "r")
    assert "resume with: graphtrain run tiny.py --overlay ema --overlay early_stop --run-dir r" in result.err
    assert command("run", "tiny.py", *BOTH, "--run-dir", "r", "--graph", "saved", "--until", "3 steps").code == 0


@pytest.mark.full
def test_an_overlay_that_the_run_was_made_without_is_a_reported_change(script: Path, command: Command) -> None:
    assert command("run", "tiny.py", "--overlay", "carry", "--until", "2 steps", "--run-dir", "r").code == 0
    words = ("run", "tiny.py", "--overlay", "carry", "--overlay", "ema", "finish.after=1 epochs")
    forked = command(*words, "--fork", "r", "--run-dir", "f")
    resumed = command(*words, "--run-dir", "r")
    for result in (forked, resumed):
        assert result.code == 0 and "average new, a copy of model" in result.err
    again = command(*words[:-1], "finish.after=2 epochs", "--run-dir", "r")
    assert again.code == 0 and "average new" not in again.err


@pytest.mark.full
def test_a_run_that_goes_on_without_its_overlay_reports_it(script: Path, command: Command) -> None:
    command("run", "tiny.py", "--overlay", "carry", "--until", "2 steps", "--run-dir", "r")
    result = command("run", "tiny.py", "--until", "3 steps", "--run-dir", "r")
    assert "guard window_cut ending -> next_batch.last or ending" in result.err


def test_show_names_the_overlay_of_everything(folder: Path, command: Command) -> None:
    out = command("show", "fit", *BOTH).out
    assert "overlays: ema, early_stop" in out
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    assert next(row for row in rows if row[0] == "early_stop")[-1] == "early_stop"
    assert next(row for row in rows if row[0] == "validate")[-1] == "ema"
    assert next(row for row in rows if row[0] == "ending")[-1] == "early_stop"
    assert "overlay" not in command("show", "fit").out
