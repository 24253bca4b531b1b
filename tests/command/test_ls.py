"""`graphtrain ls`: the runs below a folder."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.command.conftest import Command
from tests.command.test_others import gone, write_status


@pytest.fixture
def runs(tiny: Path, command: Command) -> Path:
    """A finished run, a stopped one in a folder further down, and one that was killed; strangers among them."""
    assert command("run", "tiny.py", "finish.after=2 epochs", "--run-dir", "runs/first-9", "--quiet").code == 0
    assert command("run", "tiny.py", "--until", "6 steps", "--run-dir", "runs/more/deep/first-10", "--quiet").code == 0
    write_status(tiny, process=gone(), place="step 40, epoch 2.50, batch 5/10")
    os.rename("r", "runs/first-10")
    (tiny / "runs" / "notes").mkdir()
    (tiny / "runs" / "notes" / "status.json").write_text('{"colour": "red"}')
    (tiny / "runs" / "broken" / "checkpoints").mkdir(parents=True)
    (tiny / "runs" / "broken" / "status.json").write_text("{")
    (tiny / "runs" / "empty").mkdir()
    (tiny / "runs" / "file").touch()
    (tiny / "runs" / "link").symlink_to("more")
    os.mkfifo(tiny / "runs" / "empty" / "status.json")
    return tiny


def rows(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [["ls", "runs"], ["ls"], ["status", "runs"]], ids=" ".join)
def test_every_run_has_a_row(words: list[str], runs: Path, command: Command) -> None:
    result = command(*words)
    assert (result.code, result.err) == (0, "")
    heading, broken, first, killed, deep = rows(result.out)
    assert heading == ["run", "state", "place", "graph", "last metrics", "age", "resumable"]
    assert broken[:2] == ["runs/broken", "unreadable"]
    assert first[:4] == ["runs/first-9", "finished", "step 8, epoch 2, batch 4/4", "fit"]
    assert [cell.split()[0] for cell in first[4:-1]] == ["epoch/loss", "loss", "lr"] and re.fullmatch(
        r"\d+ s ago", first[-1]
    )
    assert killed[:4] == ["runs/first-10", "interrupted", "step 40, epoch 2.50, batch 5/10", "fit"]
    assert killed[4:] == ["loss 0.25", "val/loss nan", "1 min 01 s ago", "no checkpoint"]
    assert deep[:3] == ["runs/more/deep/first-10", "stopped", "step 6, epoch 1.50, batch 2/4"]
    assert deep[-1] == "yes"


def test_as_json(runs: Path, command: Command) -> None:
    listed = json.loads(command("ls", "runs", "--json").out)
    assert [(run["run_dir"], run["state"]) for run in listed][1:3] == [
        ("runs/first-9", "finished"),
        ("runs/first-10", "interrupted"),
    ]


def test_a_run_directory_is_its_only_row(runs: Path, command: Command) -> None:
    assert [row[0] for row in rows(command("ls", "runs/first-9").out)] == ["run", "runs/first-9"]


def test_no_runs(folder: Path, command: Command) -> None:
    result = command("ls", ".")
    assert (result.code, result.out, result.err) == (0, "", "no run in ., nor in the folders below it\n")
    refused = command("ls", "nowhere")
    assert refused.code == 2 and refused.err.startswith("error: there is no folder `nowhere`")
    (folder / "empty").mkdir()
    assert "there is no run in `empty`" in command("status", "empty").err
