"""`graphtrain run --trace`: a line for each transition."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from tests.command.conftest import Command
from tests.command.running import TINY, Result

WITH_VALIDATION = TINY.replace('"training_step"', '"val_data": [torch.ones(2, 2)], "training_step"')
WORDS = ["run", "tiny.py", "accumulate.every=2", "finish.after=1 epochs"]
LINE = re.compile(
    r"trace  step (?P<step>\d+), epoch (?P<epoch>[\d.]+), batch (?P<batch>\d+)(?:/4)?(?:, window \d/2)?: "
    r"(?P<node>[\w/]+) -> (?P<next>[\w/?]+)(?:  (?P<reasons>\S.*))?"
)


@pytest.fixture
def script(folder: Path) -> Path:
    (folder / "tiny.py").write_text(WITH_VALIDATION)
    return folder


def lines_of(result: Result) -> list[re.Match[str]]:
    found = [LINE.fullmatch(line) for line in result.err.splitlines() if line.startswith("trace")]
    assert all(found), result.err
    return [one for one in found if one is not None]


def test_every_transition_is_a_line(script: Path, command: Command) -> None:
    result = command(*WORDS, "--run-dir", "r", "--trace")
    assert (result.code, result.out) == (0, "")
    lines = lines_of(result)
    assert [one["node"] for one in lines[:9]] == [
        "decide", "begin_epoch", "next_batch", "train_batch", "accumulate", "decide", "next_batch", "train_batch",
        "accumulate",
    ]  # fmt: skip
    assert (lines[-1]["node"], lines[-1]["next"]) == ("finish", "end")
    nodes = [one["node"] for one in lines]
    assert (nodes.count("train_batch"), nodes.count("step"), nodes.count("validate/eval_batch")) == (4, 2, 1)
    for one, following in itertools.pairwise(lines):
        assert following["node"] == one["next"]


def test_a_line_shows_what_was_evaluated_and_read(script: Path, command: Command) -> None:
    lines = lines_of(command(*WORDS, "--run-dir", "r", "--trace"))
    asked = [one["reasons"] for one in lines if one["node"] == "accumulate"]
    assert asked[0].startswith("accumulation_reached=False (accumulate.count=1 accumulate.full=False ")
    assert asked[1] == "accumulation_reached=True (accumulate.count=2 accumulate.full=True)"
    moments = [(one["step"], one["epoch"], one["batch"]) for one in lines if one["node"] == "step"]
    assert moments == [("1", "0.50", "2"), ("2", "1", "4")]


@pytest.mark.full
def test_without_the_option_there_is_no_line_and_the_same_result(script: Path, command: Command) -> None:
    plain, traced = command(*WORDS, "--run-dir", "a"), command(*WORDS, "--run-dir", "b", "--trace")
    assert "trace" not in plain.err and "trace" in traced.err
    first, second = (json.loads((script / one / "status.json").read_text()) for one in "ab")
    assert first["digest"] == second["digest"]
    assert (script / "a/metrics.jsonl").read_bytes() == (script / "b/metrics.jsonl").read_bytes()


def test_with_quiet_there_is_nothing_else(script: Path, command: Command) -> None:
    result = command(*WORDS, "--run-dir", "r", "--trace", "--quiet")
    assert result.code == 0
    assert result.err.splitlines() and all(LINE.fullmatch(line) for line in result.err.splitlines())


@pytest.mark.full
def test_a_run_until_and_its_continuation_are_one_run(script: Path, command: Command) -> None:
    whole = lines_of(command(*WORDS, "--run-dir", "a", "--trace"))
    parts = lines_of(command(*WORDS, "--run-dir", "b", "--trace", "--until", "1 steps"))
    result = command(*WORDS, "--run-dir", "b", "--trace")
    parts += lines_of(result)
    assert [one.group() for one in parts] == [one.group() for one in whole]


def test_the_line_of_a_failure_is_the_last(script: Path, command: Command) -> None:
    (script / "tiny.py").write_text(
        WITH_VALIDATION.replace("    return model", "    assert len(batch) == 3, 'of\\nthree'\n    return model", 1)
    )
    result = command(*WORDS, "--run-dir", "r", "--trace")
    assert result.code == 1
    last = lines_of(result)[-1]
    assert (last["node"], last["next"]) == ("train_batch", "?")
    assert last["reasons"] == "raised AssertionError: of three"
