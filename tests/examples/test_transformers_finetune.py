"""A Hugging Face model through the command: it learns, and a cut changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command.running import environment

pytest.importorskip("transformers")

SCRIPT = str(Path(__file__).resolve().parents[2] / "examples" / "transformers_finetune.py")
WORDS = ["width=32", "layers=1", "words=32", "snippets=1280", "lr=3e-3"]
SETTINGS = ["validate/next_batch.limit=2", "log.every=10 steps", "finish.after=2 epochs"]


def run(*words: str, cwd: Path) -> str:
    """What the command says; in a process of its own, in which a warning of transformers is no error."""
    arguments = [sys.executable, "-m", "graphtrain", "run", SCRIPT, *WORDS, *SETTINGS, *words]
    done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stderr


def rows_of(run_dir: Path, metric: str) -> list[float]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row[metric] for row in rows if metric in row]


def digest_of(run_dir: Path) -> Any:
    return json.loads((run_dir / "status.json").read_text())["digest"]


def test_it_learns_and_a_cut_changes_nothing(tmp_path: Path) -> None:
    run("--run-dir", "whole", cwd=tmp_path)
    accuracy = rows_of(tmp_path / "whole", "accuracy")
    assert len(accuracy) == 8
    assert accuracy[-1] > accuracy[0] + 0.2
    val_loss = rows_of(tmp_path / "whole", "val/loss")
    assert val_loss[-1] < val_loss[0]

    run("--run-dir", "cut", "--until", "47 batches", cwd=tmp_path)
    assert "unchanged: exact" in run("--run-dir", "cut", cwd=tmp_path)
    assert digest_of(tmp_path / "cut") == digest_of(tmp_path / "whole")
