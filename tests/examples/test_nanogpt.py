"""The script with everything on: evaluations of both splits, the best checkpoint, and cuts that change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command.conftest import Command

SCRIPT = str(Path(__file__).resolve().parents[2] / "examples" / "nanogpt.py")
SMALL = ("width=16", "heads=2", "layers=1", "context=16", "finish.after=30 steps", "log.every=10 steps")
OFTEN = ("validate.every=15 steps", "checkpoint.every=12 steps", "checkpoint.keep=9")
# Mean of -log(frequency) over the characters of the text, in nats: what a model of frequencies alone gives.
FREQUENCIES_ALONE = 3.15


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def digest_of(run_dir: Path) -> str:
    return str(json.loads((run_dir / "status.json").read_text())["digest"])


@pytest.mark.sweep
def test_a_cut_changes_nothing(folder: Path, command: Command) -> None:
    words = ("run", SCRIPT, *SMALL, *OFTEN, "--quiet", "--run-dir")
    whole = command(*words, "whole")
    assert whole.code == 0, whole.err
    rows = rows_of(folder / "whole")
    assert [row["step"] for row in rows if "val/loss" in row] == [15, 30]
    assert [row["step"] for row in rows if "train/loss" in row] == [15, 30]
    rates = [row["lr"] for row in rows if "lr" in row]
    assert rates == sorted(rates)  # it warms up
    assert command(*words, "cut", "--until", "21 batches").code == 0
    assert command(*words, "cut").code == 0
    assert digest_of(folder / "cut") == digest_of(folder / "whole")
    assert rows_of(folder / "cut") == rows


@pytest.mark.sweep
def test_it_learns(folder: Path, command: Command) -> None:
    assert command("run", SCRIPT, "--quiet", "--run-dir", "whole").code == 0
    *_, last = [row["val/loss"] for row in rows_of(folder / "whole") if "val/loss" in row]
    assert last < 2.1 < FREQUENCIES_ALONE
