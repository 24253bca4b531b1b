"""Commands over files of strangers: valid JSON, nothing outside of a folder; and over files that are gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command.conftest import Command

PLAIN = 'format = 1\nextends = "fit"\n'


def strict(text: str) -> Any:
    """JSON without what only Python takes."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


STATUS = '"state": "stopped", "graph": "fit", "position": "step"'
NUMBERS = {
    "NaN": "nan", "Infinity": "inf", "-Infinity": "-inf", '"nan"': "nan", "1": 1,
}  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
def test_status_and_ls_print_valid_json(number: str, folder: Path, command: Command) -> None:
    pytest.importorskip("graphtrain.report.display")
    (folder / "runs" / "r").mkdir(parents=True)
    metrics = f'"metrics": {{"loss": {number}}}, "elapsed_seconds": {number}'
    (folder / "runs" / "r" / "status.json").write_text(f"{{{STATUS}, {metrics}}}")
    shown = NUMBERS[number]
    status = strict(command("status", "runs/r", "--json").out)
    assert status["metrics"] == {"loss": shown} and status["elapsed_seconds"] == shown
    assert strict(command("ls", "runs", "--json").out)[0]["metrics"]["loss"] == shown
    for words in (["status", "runs/r"], ["ls", "runs"]):
        result = command(*words)
        assert result.code == 0 and f"loss {shown}" in result.out


# ---- what is gone


@pytest.mark.full
def test_what_is_gone_when_a_run_is_resumed(tiny: Path, command: Command) -> None:
    (tiny / "mine.toml").write_text(PLAIN)
    words = ["tiny.py", "--graph", "mine.toml", "--run-dir", "r", "--quiet"]
    assert command("run", *words, "--until", "4 steps").code == 0
    before = {path: path.read_bytes() for path in (tiny / "r").rglob("*") if path.is_file()}
    (tiny / "mine.toml").rename(tiny / "moved.toml")
    result = command("run", *words)
    assert result.code == 2 and "cannot read the graph `mine.toml`: it is missing" in result.err
    assert "hint: --graph saved takes the graph that the run was saved with" in result.err
    rows = [
        (["run", "gone.py", "--run-dir", "r"], "there is no script `gone.py`"),
        (["run", "gone/tiny.py", "--run-dir", "r"], "there is no script `gone/tiny.py`"),
        (["run", "tiny.py", "--run-dir", "r", "--resume", "gone"], "there is no checkpoint `gone`"),
        (["run", "tiny.py", "--run-dir", "r2", "--fork", "gone"], "there is no checkpoint `gone`"),
        (
            ["run", "tiny.py", "--run-dir", "r", "--init", "model=gone.safetensors"],
            "there is no file `gone.safetensors`",
        ),
        (["verify", "gone.py", "--run-dir", "r"], "there is no script `gone.py`"),
        (["verify", "tiny.py", "--run-dir", "gone"], "there is no run in `gone`"),
        (["replay", "gone.py", "--run-dir", "r", "--to", "1 steps"], "there is no script `gone.py`"),
        (["replay", "tiny.py", "--run-dir", "gone", "--to", "1 steps"], "there is no run in `gone`"),
        (["status", "gone"], "there is no run in `gone`"),
        (["ls", "gone"], "there is no folder `gone`"),
        (["diff", "gone", "r"], "there is no graph `gone`"),
        (["render", "fit", "-o", "gone/fit.mmd"], "the picture cannot be written"),
    ]
    for command_words, message in rows:
        result = command(*command_words)
        assert result.code in (1, 2) and message in result.err and "Traceback" not in result.err, command_words
    assert {path: path.read_bytes() for path in (tiny / "r").rglob("*") if path.is_file()} == before
    assert command("run", *[word.replace("mine.toml", "saved") for word in words]).code == 0
