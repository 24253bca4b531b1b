"""Promise 16: `graphtrain verify` without a run: sound scripts are proved, whatever a resume loses is named."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphtrain.command import verifying
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

# Two runs differ already.
CLOCK = _hidden("import time", "", "time.perf_counter_ns() % 1000")


@pytest.fixture
def forked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in which the processes of `verify` find torch imported; temporary files are below it."""
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(verifying, "launch", launched)
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
    assert result.err.startswith("trained once, with cuts chosen by --cuts-seed 1\ncode, data")
    lines = result.out.splitlines()
    assert lines[-1] == "3 spans: bitwise equal"
    assert all(line.endswith(": equal") for line in lines[:-1]) and lines[0].startswith("the beginning to ")


@pytest.mark.full
def test_what_no_checkpoint_has_is_found(forked: Path, command: Command) -> None:
    result = verified(command, HIDDEN["the environment"], "finish.after=2 epochs", "--cuts", "1")
    assert result.code == 1, result.out + result.err
    assert "\n  resources/model/weight: " in result.out, "the first field, with the elements that differ"
    assert "resources/model/weight depends on something that was not saved, or not restored." in result.out
    assert result.out.endswith("1 of 2 spans differ\n")


@pytest.mark.full
def test_two_runs_that_differ_are_told_from_what_a_resume_loses(forked: Path, command: Command) -> None:
    (forked / "mine.py").write_text(CLOCK)
    result = command("verify", "mine.py", "finish.after=1 epochs", "--cuts", "1")
    assert result.code == 1
    assert "Nothing was resumed here, so the computation is not repeatable: seed every random" in result.out
    assert "--deterministic" in result.out


@pytest.mark.full
def test_errors_of_the_script_are_those_of_run(folder: Path) -> None:
    (folder / "tiny.py").write_text(TINY)
    result = in_a_process("verify", "tiny.py", "--cuts", "2", "rate=1", cwd=folder)
    assert (result.code, result.out) == (2, "")
    assert "error: `rate` is not an argument of tiny.py:setup" in result.err and "Traceback" not in result.err


@pytest.mark.sweep
def test_without_a_mutation_every_cut_is_equal(forked: Path, command: Command) -> None:
    result = verified(command, STATEFUL, *STATEFUL_SETTINGS, "--cuts", "9")
    assert result.code == 0 and result.out.endswith("10 spans: bitwise equal\n"), result.out + result.err


@pytest.mark.sweep
@pytest.mark.parametrize("name", HIDDEN)
def test_state_out_of_reach_is_found(name: str, forked: Path, command: Command) -> None:
    result = verified(command, HIDDEN[name], "finish.after=2 epochs", "--cuts", "4")
    assert result.code == 1, result.out + result.err
    is_reported = name == "a generator"
    assert ("The checkpoint says that it is not exact: " in result.out) is is_reported, "what it can know, no more"


@pytest.mark.full
def test_state_in_an_imported_module_is_no_difference(forked: Path, command: Command) -> None:
    """It is saved and restored; a replay in the process of another would begin with what that one has left."""
    (forked / "helper.py").write_text("seen = 0\n\ndef counted():\n    global seen\n    seen += 1\n    return seen\n")
    result = verified(command, _hidden("import helper", "", "helper.counted()"), "finish.after=2 epochs", "--cuts", "3")
    assert result.code == 0 and result.out.endswith("4 spans: bitwise equal\n"), result.out + result.err
