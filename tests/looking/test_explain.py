"""Promise 18: `graphtrain explain`: why a run ended, and what to do next, from its run directory alone; and codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import graphtrain
from tests.docs.execution import read_page
from tests.looking.conftest import Command
from tests.looking.running import TINY, forget, gone
from tests.world import small_fit, world

RUN = ["run", "tiny.py", "lr=0.2", "checkpoint.every=2 steps", "log.every=1 steps", "--quiet", "--run-dir", "r"]
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


def fails_at(step: int, statement: str) -> str:
    """A script whose step function does something once."""
    text = TINY.replace("def training_step(model, batch):", "def training_step(model, batch, step):")
    return text.replace(
        "    return model(batch)", f"    if step == {step}:\n        {statement}\n    return model(batch)"
    )


def sections(out: str) -> dict[str, list[str]]:
    """Title -> the lines below it."""
    parts = [part.splitlines() for part in out.split("\n\n")]
    return {"": parts[0], **{part[0].rstrip(":"): [line.strip() for line in part[1:]] for part in parts[1:]}}


@pytest.mark.full
def test_a_run_that_failed(folder: Path, command: Command) -> None:
    (folder / "tiny.py").write_text(fails_at(3, 'raise OSError("no\\ndata")'))
    assert command(*RUN).code == 1
    result = command("explain", "r")
    assert (result.code, result.err) == (0, "")
    told = sections(result.out)
    assert re.fullmatch(r"r: failed, step 3, epoch 1, batch 4/4, \d+ s ago", told[""][0])
    assert told[""][1:] == ["  it failed in node `train_batch`: OSError: no data (tiny.py:7)"]
    (start,) = told["starts"]
    assert re.fullmatch(rf"{TIME}  started on \S+ by process \d+", start)
    assert told["checkpoints"][0] == "newest 000001-step-2, step 2"
    assert told["next"] == [
        "graphtrain replay tiny.py --run-dir r --to '4 batches' --node train_batch --runs 3",
        "replays it up to the node that failed; --pdb opens a debugger there",
        "graphtrain run tiny.py lr=0.2 'checkpoint.every=2 steps' 'log.every=1 steps' --quiet --run-dir r",
        "resumes it; fix the error first: OSError: no data (tiny.py:7)",
    ]
    forget("tiny")
    (folder / "tiny.py").write_text(TINY)
    assert command(*RUN, "finish.after=2 epochs").code == 0
    told = sections(command("explain", "r").out)
    assert told[""][1:] == [
        "  it reached its end, 2 epochs",
        "  by the edge finish -> end if finished, where finished = "
        '"(ending or next_batch.empty) and accumulate.count == 0"',
    ]
    assert told["starts"][1].partition("  ")[2].startswith("resumed from 000001-step-2 on ")
    assert told["reported"][-1].partition("  ")[2].startswith("resumed r: step 2, epoch 0.50, batch 2/4; repeating")
    assert told["next"] == ["nothing; a later end, such as a larger finish.after, trains it further"]


def test_an_error_that_another_start_would_not_mend(tiny: Path, command: Command) -> None:
    misspelled = ["checkpoint.best=epoch/los", "checkpoint.best_mode=min"]
    assert command(*RUN, *misspelled).code == 2
    told = sections(command("explain", "r").out)
    assert told["next"][-1] == "resumes it; fix the error first: did you mean `epoch/loss`?"
    assert command("status", "r").out.splitlines()[-2:] == [
        "  UnknownMetricError: no row of metrics has `epoch/los`, which checkpoint.best names",
        "  hint: did you mean `epoch/loss`?",
    ]
    assert command(*RUN, "checkpoint.best=epoch/loss", "--until", "5 steps").code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_run_that_a_signal_stopped(number: signal.Signals, folder: Path, command: Command) -> None:
    script = fails_at(1, f"signal.raise_signal({int(number)})").replace(
        "import torch\n", "import signal\nimport torch\n"
    )
    (folder / "tiny.py").write_text(script)
    assert command(*RUN, "--resume", "never").code == 75
    told = sections(command("explain", "r").out)
    assert told[""][1] == f"  it was stopped by {number.name}; next is node `accumulate`"
    assert told["next"][1] == "resumes it" and "--resume" not in told["next"][0]


@pytest.mark.full
def test_a_run_that_reached_its_limit(tiny: Path, command: Command) -> None:
    assert command(*RUN, "--until", "3 steps").code == 0
    told = sections(command("explain", "r").out)
    assert (
        told[""][1] == "  it was stopped at --until 3 steps; next is node `next_batch`"
        and "--until" not in told["next"][0]
    )


def test_a_run_that_ended_early(folder: Path, command: Command) -> None:
    (folder / "tiny.py").write_text(
        fails_at(1, "from graphtrain import STOP; return model(batch).square().mean(), STOP")
    )
    result = command(*RUN)
    assert result.code == 0, result
    assert sections(command("explain", "r").out)[""][1] == "  it ended before 10 epochs"


@pytest.mark.full
def test_what_a_node_says_of_an_end_or_an_error_is_told(folder: Path, command: Command) -> None:
    text = TINY.replace('"training_step"', '"val_data": [torch.ones(2, 2)], "training_step"')
    (folder / "tiny.py").write_text(text)
    words = ["run", "tiny.py", "lr=0", "--overlay", "early_stop", "finish.after=9 epochs", "--quiet", "--run-dir"]
    assert command(*words, "r").code == 0
    told = sections(command("explain", "r").out)
    early = "  it ended before 9 epochs: early_stop: val/loss has not improved on .* in 3 values"
    assert re.fullmatch(early, told[""][1]) and len(told[""]) == 2
    by_a_node = "`early_stop` ended it: change its parameters, as in early_stop.patience=6"
    assert told["next"] == [f"nothing; {by_a_node}"]
    later = [word.replace("9 epochs", "20 epochs") for word in words]
    assert command(*later, "r").err.endswith(f"; {by_a_node}\n")
    (folder / "own.py").write_text(
        text.replace("return model(batch).square().mean()", "return model(batch).square().mean().item()")
    )
    assert command("run", "own.py", *words[2:], "own").code == 2
    hint = "  hint: end it with `return loss`, a tensor without `.item()`"
    assert sections(command("explain", "own").out)[""][2].startswith(hint)


def test_a_run_that_was_killed_and_one_that_is_running(folder: Path, command: Command) -> None:
    status = {"state": "running", "graph": "fit", "position": "train_batch", "process": os.getpid()}

    def told(**changes: Any) -> dict[str, list[str]]:
        (folder / "r").mkdir(exist_ok=True)
        written = {**status, "host": socket.gethostname(), "written_at_unix_seconds": 1000.0, **changes}
        (folder / "r" / "status.json").write_text(json.dumps(written))
        return sections(command("explain", "r").out)

    killed = told(process=gone())
    assert killed[""][1].endswith("is gone: killed, out of memory, its disk was full, or the machine went down")
    again = "run the program again, with this run directory: that "
    assert killed["next"] == [f"{again}starts it from the beginning, as there is no checkpoint"]
    assert told(process=None)[""][1].startswith("  its process is gone: killed, "), "where no process is named"
    assert "None" not in command("status", "r").out
    assert told(state="interrupted")[""][1].startswith("  it was interrupted immediately in node `train_batch`")
    body = "  2 epochs are the end of a body, such as that of kfold"
    assert told(state="finished", end=["2 epochs"], done=None)[""][1:] == [], body
    running = told(not_finite="loss is NaN since step 30")
    assert running["next"][0] == "graphtrain status r" and running[""][2] == "  loss is NaN since step 30"


def test_what_was_reported_has_no_line_of_a_display(tmp_path: Path) -> None:
    lines: list[str] = []
    world(small_fit()).trainer(tmp_path / "r", display="auto", lines=lines).run()
    reported = [line for _, line in graphtrain.Run(tmp_path / "r").status["notices"]]
    assert [line for line in lines if line not in reported and line.startswith(("step ", "time: "))]
    assert reported and not [line for line in reported if line.startswith(("step ", "time: "))]


DIVERGING = TINY.replace("(model, batch):", "(model, batch, step):").replace(
    "    return model(batch).square().mean()",
    "    return model(batch).square().mean() * (float('nan') if step > 4 else 1)",
)


@pytest.mark.full
def test_a_run_that_diverged(folder: Path, command: Command) -> None:
    assert DIVERGING.count("nan") == 1
    (folder / "tiny.py").write_text(DIVERGING)
    assert command(*RUN).code == 0
    told = sections(command("explain", "r").out)
    assert "`loss` is not finite since step 6" in told[""][-1]
    assert told["checkpoints"][-1] == "newest with finite weights 000002-step-4"
    assert told["next"] == [
        "graphtrain run tiny.py lr=0.2 'checkpoint.every=2 steps' 'log.every=1 steps' --quiet --fork r/000002-step-4 "
        "--overlay check_finite --run-dir r-2",
        "names the batch at which the loss diverges",
    ]
    assert rows_of(command("ls", ".").out)[:2] == ["r", "finished, not finite by step 6"]
    forget("tiny")
    forked = command(*shlex.split(told["next"][0])[1:])
    assert forked.code == 1 and "the loss is nan at batch 2 of epoch 2, after step 5" in forked.err, forked.err
    told = sections(command("explain", "r-2").out)
    assert told["next"][0].endswith(" samples' --node check_loss") and len(told["next"]) == 4
    assert told[""][2].startswith("  hint: look at the batch first")
    replayed = command(*shlex.split(told["next"][0])[1:])
    assert replayed.code == 0 and "loss     float32 (): nan" in replayed.out and "nan  " in replayed.out, replayed
    (error,) = rows_of(command("ls", "r-2/..", "--columns", "error", "--sort", "-error").out)[-1:]
    assert len(error) == 60 and error.endswith("...")
    status = command("status", "r-2").out.splitlines()
    assert any(line.startswith("  hint: look at the batch first") for line in status)


def rows_of(out: str) -> list[str]:
    """The cells of the first run that is listed."""
    return re.split(r" {2,}", out.splitlines()[1].strip())


# ---- the codes of problems

SOURCES, CORPUS = Path(graphtrain.__file__).parent, Path(__file__).parents[1] / "graph"
PAGE = Path(__file__).parents[2] / "docs" / "checks.md"


def codes_in(paths: Iterable[Path], pattern: str) -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in paths if path.name != "codes.py"]
    return sorted({code for text in texts for code in re.findall(pattern, text)})


def test_each_code_of_a_broken_graph_is_explained(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for code in codes_in(CORPUS.glob("*.py"), r"\bG[0-7]\d\d\b"):
        result = command("explain", code)
        assert result.code == 0 and result.out.startswith(f"{code}: "), code
        assert max(map(len, result.out.splitlines()[1:])) <= 80, code
        assert "\n\nwithout the check:\n  " in result.out and "\n\nwhat to do:\n  " in result.out, code


def test_the_page_of_checks_has_each_code_that_can_be_reported() -> None:
    rows = re.findall(r"^\| (G\d\d\d) \| .+? \| .+? \| .+ \|$", read_page(PAGE), flags=re.MULTILINE)
    assert rows == codes_in(SOURCES.rglob("*.py"), r'"(G\d\d\d)"')


def test_a_code_that_does_not_exist(command: Command) -> None:
    result = command("explain", "G499")
    assert result.code == 2
    assert result.err == "error: there is no code `G499`\n  hint: docs/checks.md lists all of them\n"
