"""`graphtrain run --trace`: a line for each transition."""

from __future__ import annotations

import itertools
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


def test_the_line_of_a_failure_is_the_last(script: Path, command: Command) -> None:
    (script / "tiny.py").write_text(
        WITH_VALIDATION.replace("    return model", "    assert len(batch) == 3, 'of\\nthree'\n    return model", 1)
    )
    result = command(*WORDS, "--run-dir", "r", "--trace")
    assert result.code == 1
    last = lines_of(result)[-1]
    assert (last["node"], last["next"]) == ("train_batch", "?")
    assert last["reasons"] == "raised AssertionError: of three"
