"""Promise 16: `graphtrain verify --cuts`: sound scripts are proved, and whatever is lost in a resume is named."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphtrain.command import verify_cuts
from graphtrain.command.verify_cuts import CutVerdict, Ended, lines_of_verdicts, read_resume
from graphtrain.proof.comparison import StateDifference
from graphtrain.proof.cuts import Cut
from tests.looking.conftest import Command
from tests.looking.running import TINY, Result, in_a_process, launched

# Every sort of state there is: that of `tests/world.py`.
STATEFUL = f"""\
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.world import world

def setup():
    return world().make()
"""
STATEFUL_SETTINGS = ("accumulate.every=3", "clip.max_norm=1.0", "validate.every=0.5 epochs", "log.every=2 steps",
                     "finish.after=2 epochs")  # fmt: skip


def _hidden(imports: str, defined: str, count: str, made: str = "") -> str:
    """A script whose loss depends on a count of its steps, which is kept somewhere.

    Arguments:
        defined: at the top level.
        count: an expression that counts, and gives the count.
        made: the beginning of `setup`.
    """
    script = TINY.replace("import torch\n", f"{imports}\nimport torch\n\n{defined}\n")
    script = script.replace("model(batch).square().mean()", f"model(batch).square().mean() / (1 + {count})")
    return script.replace("    model = torch.nn.Linear", f"    {made or 'pass'}\n    model = torch.nn.Linear")


# Where the count is -> the script. A resume cannot bring it back.
HIDDEN = {
    "lru_cache": _hidden(
        "import functools",
        "@functools.lru_cache(None)\ndef steps():\n    return [0]\n\n"
        "def counted():\n    steps()[0] += 1\n    return steps()[0]",
        "counted()",
    ),
    "the environment": _hidden(
        "import os",
        "def counted():\n    os.environ['COUNT'] = str(int(os.environ.get('COUNT', 0)) + 1)\n"
        "    return int(os.environ['COUNT'])",
        "counted()",
    ),
    "a generator": _hidden(
        "",
        "def numbers():\n    n = 0\n    while True:\n        n += 1\n        yield n\n\ncount = numbers()",
        "next(count)",
    ),
}  # fmt: skip

# Those of which the resume itself reports that it is not exact.
REPORTED = {"a generator"}

# Two runs differ already.
CLOCK = _hidden("import time", "", "time.perf_counter_ns() % 1000")


@pytest.fixture
def forked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in which the processes of `verify` find torch imported; temporary files are below it."""
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(verify_cuts, "launch", launched)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield folder
    assert list(temporary.iterdir()) == [], "the temporary folder is removed"


def verified(command: Command, script: str, *words: str) -> Result:
    """What `verify` prints about a script, with its exit code."""
    Path("mine.py").write_text(script)
    return command("verify", "mine.py", "--cuts-seed", "1", *words)


@pytest.mark.full
def test_a_script_without_a_run_is_proved(forked: Path, command: Command) -> None:
    result = verified(command, STATEFUL, *STATEFUL_SETTINGS, "--until", "11 batches", "--cuts", "2")
    assert result.code == 0, result.out + result.err
    assert result.err.startswith("trained once: ") and result.err.endswith("; cuts chosen with --cuts-seed 1\n")
    lines = result.out.splitlines()
    assert lines[0].split() == ["cut", "saved", "at", "next", "node", "result"]
    assert [line.split()[-1] for line in lines[1:3]] == ["equal"] * 2
    assert lines[3:] == ["2 cuts: bitwise equal"]


@pytest.mark.full
def test_what_no_checkpoint_has_is_found(forked: Path, command: Command) -> None:
    result = verified(command, HIDDEN["the environment"], "finish.after=2 epochs", "--cuts", "1")
    assert result.code == 1, result.out + result.err
    cut = result.out.splitlines()[1].split()[0]
    assert f"transition {cut} (" in result.out
    assert "\n  resources/model/weight: " in result.out, "the first field, with the elements that differ"
    assert "1 cut differs although the resume is reported as exact" in result.out
    assert result.out.endswith("1 of 1 cut not exact\n")


@pytest.mark.full
def test_two_runs_that_differ_are_reported_before_anything_is_resumed(forked: Path, command: Command) -> None:
    (forked / "mine.py").write_text(CLOCK)
    result = command("verify", "mine.py", "finish.after=1 epochs", "--cuts", "1")
    assert result.code == 1
    assert result.out.startswith("two runs of the script differ: ")
    assert "Seed every random generator in setup" in result.out and "--deterministic" in result.out
    assert "equal" not in result.out


@pytest.mark.full
def test_errors_of_the_script_are_those_of_run(folder: Path) -> None:
    (folder / "tiny.py").write_text(TINY)
    result = in_a_process("verify", "tiny.py", "--cuts", "2", "rate=1", cwd=folder)
    assert (result.code, result.out) == (2, "")
    assert "error: `rate` is not an argument of tiny.py:setup" in result.err and "Traceback" not in result.err


@pytest.mark.sweep
def test_without_a_mutation_every_cut_is_equal(forked: Path, command: Command) -> None:
    result = verified(command, STATEFUL, *STATEFUL_SETTINGS, "--cuts", "9")
    assert result.code == 0 and result.out.endswith(" cuts: bitwise equal\n"), result.out + result.err


@pytest.mark.sweep
@pytest.mark.parametrize("name", HIDDEN)
def test_state_out_of_reach_is_found(name: str, forked: Path, command: Command) -> None:
    result = verified(command, HIDDEN[name], "finish.after=2 epochs", "--cuts", "4")
    assert result.code == 1, result.out + result.err
    expected = ": not exact\n" if name in REPORTED else ": differs\n"
    assert expected in result.out, "a resume reports what it can know, no more"


CUT = Cut(57, "step 3, epoch 0.75, batch 6/8", "zero_grad")
FIELDS = [StateDifference(f"resources/model/{number}", "1 -> 2") for number in range(10)]
ROW = StateDifference("metrics.jsonl, row 4", "at step 4 loss 0.5 -> 0.25")


def test_the_first_cut_that_differs_is_reported_with_its_fields_and_others_with_one() -> None:
    bad = [CutVerdict(CUT, differences=[*FIELDS, ROW]), CutVerdict(CUT, differences=[*FIELDS, ROW])]
    lines = list(lines_of_verdicts(bad))
    head = "\ntransition 57 (step 3, epoch 0.75, batch 6/8, next node zero_grad): differs"
    assert lines[0] == lines[11] == head
    assert lines[1:11] == [
        *(f"  resources/model/{number}: 1 -> 2" for number in range(8)),
        "  metrics.jsonl, row 4: at step 4 loss 0.5 -> 0.25",
        "  ... and 2 more",
    ]
    assert lines[12:15] == [f"  {FIELDS[0]}", f"  {ROW}", "  ... and 9 more"]
    assert lines[-1].startswith("2 cuts differ although the resume is reported as exact: ")


def test_what_a_resume_reports_and_why_it_fails_is_quoted() -> None:
    reported = CutVerdict(CUT, lost="count is an iterator\x1b[2J")
    failed = CutVerdict(CUT, failure="error: the state loaded is not the state saved\n  hint: none")
    lines = list(lines_of_verdicts([reported, failed]))
    assert lines[1] == "  the resume reports: not exact: count is an iterator\\x1b[2J"
    assert lines[2].endswith(": cannot be resumed")
    assert lines[3:] == ["  error: the state loaded is not the state saved", "    hint: none"]


@pytest.mark.parametrize(
    ("code", "output", "failure", "reported"),
    [
        (0, "skipped a damaged checkpoint: x\nresumed r: step 1; exact\n", "skipped a damaged checkpoint: x", ""),
        (0, "graph fit\n", "the run began from the beginning instead of being resumed", ""),
        (1, "resumed r: a; not exact: b\nTraceback (most recent call last):\nValueError: no\n",
         "Traceback (most recent call last):\nValueError: no", "b"),
        (-9, "", "the run failed with the exit code -9", ""),
    ],
)  # fmt: skip
def test_what_a_process_tells_is_read(code: int, output: str, failure: str, reported: str) -> None:
    assert read_resume(Ended(code, output)) == (reported, "", failure)


def test_what_changed_meanwhile_is_no_silent_difference() -> None:
    lost, changed, _ = read_resume(Ended(0, "resumed r: step 1; exact except for what changed: train.py\n"))
    lines = list(lines_of_verdicts([CutVerdict(CUT, lost, changed, differences=[ROW])]))
    assert lines[1:] == ["  the resume reports: exact except for what changed: train.py", f"  {ROW}"]
