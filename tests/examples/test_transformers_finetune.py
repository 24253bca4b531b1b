"""A Hugging Face model through the command: a cut changes nothing, and in a sweep it learns."""

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
WORDS = ["layers=1", "length=32", "snippets=640", "lr=2e-3"]
SETTINGS = ["validate/next_batch.limit=2", "log.every=10 steps"]


# One process for all calls, since transformers takes seconds to import; none of its warnings is an error there.
CALLS = """
import json, sys
from graphtrain.command import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["graphtrain", "run", *words]
    try:
        main()
    except SystemExit as leaving:
        print(leaving.code or 0)
"""


def run(*calls: list[str], cwd: Path) -> tuple[list[str], str]:
    """The exit codes of calls of the command, and their messages."""
    words = json.dumps([[SCRIPT, *WORDS, *SETTINGS, *call] for call in calls])
    arguments = [sys.executable, "-c", CALLS, words]
    done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, timeout=300, env=environment())
    return done.stdout.split(), done.stderr


def rows_of(run_dir: Path, metric: str) -> list[float]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row[metric] for row in rows if metric in row]


def digest_of(run_dir: Path) -> Any:
    return json.loads((run_dir / "status.json").read_text())["digest"]


def cut_and_whole(folder: Path, epochs: int, batches: int) -> str:
    """Run it whole, and cut after some batches; the messages."""
    ending, cut = f"finish.after={epochs} epochs", ["--run-dir", "cut"]
    words = [["--run-dir", "whole"], [*cut, "--until", f"{batches} batches"], cut]
    codes, messages = run(*([ending, *call] for call in words), cwd=folder)
    assert codes == ["0"] * 3, messages
    return messages


def assert_equal(folder: Path, messages: str) -> None:
    assert "unchanged: exact" in messages
    assert digest_of(folder / "cut") == digest_of(folder / "whole")


@pytest.mark.sweep
def test_a_cut_changes_nothing(tmp_path: Path) -> None:
    assert_equal(tmp_path, cut_and_whole(tmp_path, epochs=1, batches=7))
    assert len(rows_of(tmp_path / "whole", "accuracy")) == 2
    assert len(rows_of(tmp_path / "whole", "val/accuracy")) == 1


@pytest.mark.sweep
def test_it_learns_and_a_cut_changes_nothing(tmp_path: Path) -> None:
    messages = cut_and_whole(tmp_path, epochs=4, batches=27)
    accuracy = rows_of(tmp_path / "whole", "accuracy")
    assert len(accuracy) == 8
    assert accuracy[-1] > accuracy[0] + 0.2
    unseen = rows_of(tmp_path / "whole", "val/accuracy")
    assert unseen[-1] > unseen[0] + 0.1
    assert_equal(tmp_path, messages)
