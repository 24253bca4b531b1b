"""Promises 1, 4, 7: what a script is to the command: its `setup`, its graph, `graphtrain.main`, and the help on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphtrain import Graph
from tests.looking.conftest import Command
from tests.looking.running import TINY, environment, in_a_process, python

MAIN = '\nif __name__ == "__main__":\n    import graphtrain\n    graphtrain.main(setup)\n'

WORKERS = """\
import torch
from torch.utils.data import DataLoader
import graphtrain

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.full((1,), index / 64) + torch.randn(1)

def training_step(model, batch):
    return model(batch).square().mean()

def setup(loader: str, start: str):
    model = torch.nn.Linear(1, 1)
    make = graphtrain.Loader if loader == "Loader" else DataLoader
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "train_data": make(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=start),
        "training_step": training_step,
    }

graphtrain.main(setup)
"""


@pytest.fixture
def script(folder: Path) -> Path:
    (folder / "train.py").write_text(TINY + MAIN)
    return folder


def status_of(run_dir: Path) -> dict[str, object]:
    return dict(json.loads((run_dir / "status.json").read_text()))


@pytest.mark.full
def test_a_script_is_the_command_and_both_are_one_run(script: Path, command: Command) -> None:
    first = python("train.py", "lr=0.2", "finish.after=2 epochs", "--until", "3 steps", cwd=script)
    assert first.code == 0, first.err
    assert "resume with: python train.py lr=0.2 'finish.after=2 epochs' --run-dir runs/train-001" in first.err
    again = python("train.py", "lr=0.2", "finish.after=2 epochs", "--run-dir", "runs/train-001", cwd=script)
    assert again.code == 0 and "unchanged: exact" in again.err
    assert command("run", "train.py", "lr=0.2", "finish.after=2 epochs", "--run-dir", "whole").code == 0
    assert status_of(script / "runs/train-001")["digest"] == status_of(script / "whole")["digest"]


@pytest.mark.full
def test_an_error_is_reported_as_by_the_command(script: Path) -> None:
    result = python("train.py", "lr=fast", cwd=script)
    assert (result.code, "Traceback" in result.err) == (2, False), result.err
    assert 'error: train.py:setup: lr: expected a number, got "fast"' in result.err
    assert not (script / "runs").exists()


@pytest.mark.full
def test_help_lists_what_can_be_set(script: Path, command: Command) -> None:
    shown = python("train.py", "--help", cwd=script)
    assert shown.code == 0, shown.err
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert "lr=0.1 a number" in lines and "batches=4 an integer" in lines
    assert "Usage: python train.py" in shown.out
    small = python("train.py", "--help", cwd=script, env={**os.environ, "COLUMNS": "80"}).out.splitlines()
    assert 40 < len(small) <= 61
    assert [line for line in small if len(line) > 80] == []
    assert "Arguments of setup" in command("run", "train.py", "--help").out


def test_types_and_defaults_of_a_setup_are_words(folder: Path, command: Command) -> None:
    signature = (
        "layer: type = torch.nn.Linear, call=lambda x: x, make: 'Callable[[], int] | None' = None, thing: object = 1"
    )
    text = "from collections.abc import Callable\n" + TINY.replace("lr: float = 0.1", f"lr: float = 0.1, {signature}")
    (folder / "typed.py").write_text(text)
    out = command("run", "typed.py", "--help").out
    lines = [" ".join(line.split()) for line in out.partition("Arguments of setup")[2].splitlines()]
    for words in (
        "lr=0.1 a number",
        "layer=Linear a class",
        "call=<lambda>",
        "make=None a function",
        "thing=1 any value",
    ):
        assert any(line.startswith(words) for line in lines)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("loader", "start", "number"),
    [
        ("Loader", "spawn", signal.SIGTERM),
        ("DataLoader", "forkserver", signal.SIGHUP),
        ("DataLoader", "forkserver", signal.SIGTERM),
        ("DataLoader", "fork", signal.SIGINT),
    ],
)
def test_workers_however_they_are_started(loader: str, start: str, number: int, folder: Path) -> None:
    """Not even a guard is needed: in a worker, `main` does nothing. A signal reaches all, and the run stops well."""
    (folder / "train.py").write_text(WORKERS)
    words = [f"loader={loader}", f"start={start}", "finish.after=1 epochs", "log.every=1 steps", "--run-dir", "r"]
    process = subprocess.Popen(
        [sys.executable, "train.py", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(), start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    rows = folder / "r" / "metrics.jsonl"
    while process.poll() is None and time.monotonic() < deadline:
        if rows.exists() and rows.read_bytes().count(b"\n") > 8:  # from every worker some
            break
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75, err
    assert "Traceback" not in err and "stopped on request" in err
    assert 0 < int(str(status_of(folder / "r")["step"])) < 1024


# ---- what else a setup may return


def test_loggers_of_a_setup_are_called(script: Path, command: Command) -> None:
    text = TINY.replace("    return {\n", '    return {"loggers": [lambda row, step: print("row", step)],\n')
    (script / "logged.py").write_text(text)
    result = command("run", "logged.py", "finish.after=2 steps", "log.every=1 steps")
    assert result.code == 0, result.err
    assert [line for line in result.out.splitlines() if line.startswith("row")][:2] == ["row 1", "row 2"]


@pytest.mark.full
@pytest.mark.parametrize("left_out", [True, False])
def test_a_setup_names_what_is_no_state(left_out: bool, script: Path, command: Command) -> None:
    text = TINY.replace(
        "def training_step(model, batch):\n", "seen = []\n\ndef training_step(model, batch):\n    seen.append(1)\n"
    )
    named = '"not_state": ["seeing:seen"],' if left_out else ""
    (script / "seeing.py").write_text(text.replace("    return {\n", f"    return {{{named}\n"))
    words = ["run", "seeing.py", "finish.after=2 epochs", "--run-dir", "r"]
    assert command(*words, "--until", "1 epochs").code == 0
    sys.modules.pop("seeing")
    result = command(*words)
    assert result.code == 0 and "unchanged: exact" in result.err
    assert len(sys.modules["seeing"].seen) == (4 if left_out else 8)


# ---- the graph of a script, whichever command is given the script

EDITED = 'graphtrain.Graph.load("fit").set("finish", after="2 steps")'
GUARDED = '\nif __name__ == "__main__":\n    graphtrain.main({})\n'
NAMED = f"import graphtrain\n{TINY}\ngraph = {EDITED}\n" + GUARDED.format("setup")


# What stands in a script in place of `graph = ...` and of the call of main; all of them are the edited graph.
KNOWN = {
    "its name": (f"graph = {EDITED}", GUARDED.format("setup")),
    "its name and no main": (f"graph = {EDITED}", ""),
    "the path of a file": ('graph = "mine.toml"', GUARDED.format("setup")),
    "imported": ("from nets import graph", GUARDED.format("setup")),
}


@pytest.mark.second(2)
@pytest.mark.first(1)
@pytest.mark.parametrize("pieces", KNOWN.values(), ids=KNOWN)
def test_every_command_uses_the_graph_of_the_script(pieces: tuple[str, str], folder: Path, command: Command) -> None:
    definition, call = pieces
    (folder / "nets.py").write_text(f"import graphtrain\ngraph = {EDITED}\n")
    (folder / "mine.toml").write_text('format = 1\nextends = "fit"\n[[edit]]\nset = "finish"\nafter = "2 steps"\n')
    (folder / "train.py").write_text(f"import graphtrain\n{TINY}\n{definition}\n{call}")
    for run_dir, words, steps in (("r", [], 2), ("b", ["finish.after=3 steps"], 3), ("c", ["--graph", "fit"], 40)):
        assert command("run", "train.py", "--run-dir", run_dir, "--quiet", *words).code == 0
        assert status_of(folder / run_dir)["step"] == steps
    assert "2 steps" in command("show", "train.py").out


@pytest.mark.full
def test_a_run_begun_by_python_is_resumed_by_the_command(folder: Path) -> None:
    (folder / "train.py").write_text(NAMED)
    first = python("train.py", "--run-dir", "r", "--until", "1 steps", cwd=folder)
    assert first.code == 0, first.err
    second = in_a_process("run", "train.py", "--run-dir", "r", cwd=folder)
    assert "unchanged: exact" in second.err and status_of(folder / "r")["step"] == 2


@pytest.mark.full
def test_commands_that_accept_a_graph_accept_a_script(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text(NAMED)
    assert command("check", "train.py").out == "train.py: no problems (15 nodes)\n"
    assert command("check", "train.py:setup", "--json").out == "[]\n"
    assert command("render", "train.py", "-o", "train.dot").code == 0
    assert "2 steps" in (folder / "train.dot").read_text()
    assert "finish.after  10 epochs  2 steps" in command("diff", "fit", "train.py").out
    assert command("copy", "train.py", "copied.toml").code == 0
    assert Graph.load("copied.toml") == Graph.load("fit").set("finish", after="2 steps")
    (folder / "other.py").write_text(TINY)
    assert command("run", "other.py", "--graph", "train.py", "--run-dir", "r").code == 0
    assert status_of(folder / "r")["step"] == 2


def test_a_graph_file_never_imports_a_script(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("open('imported', 'w').close()\n" + NAMED)
    (folder / "mine.toml").write_text('format = 1\nextends = "train.py"\n')
    assert command("show", "mine.toml").code == 2
    assert not (folder / "imported").exists()


# ---- `setup(run)`: the number of steps of the run, as the command line makes it

CYCLE = """\
import torch


def training_step(model, batch):
    return model(batch).square().mean()


def setup(run, lr: float = 0.1, batches: int = 10):
    train_data = [torch.randn(2, 2) for _ in range(batches)]
    steps = run.steps(train_data)
    print("steps", steps)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps),
        "train_data": train_data,
        "training_step": training_step,
    }
"""


@pytest.fixture
def cycle(folder: Path) -> Path:
    (folder / "cycle.py").write_text(CYCLE)
    return folder


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["accumulate.every=4", "finish.after=3 epochs"], "steps 9"),
        (["accumulate.every=4", "finish.after=7 steps", "batches=11"], "steps 7"),
        (["accumulate.every=4", "finish.after=3 epochs", "--overlay", "carry"], "steps 8"),
        (["accumulate.every=4", "finish.after=3 epochs", "--overlay", "drop", "--overlay", "ema"], "steps 6"),
        (["accumulate.every=4", "finish.after=3 epochs", "--overlay", "check_finite"], "steps 9"),
    ],
)
def test_it_is_the_run_of_the_command_line(words: list[str], printed: str, cycle: Path, command: Command) -> None:
    result = command("run", "cycle.py", *words, "--run-dir", "r")
    assert result.code == 0, result.err
    assert result.out.splitlines() == [printed]
    assert result.err.count("run.steps: at most 9 steps") == ("check_finite" in words)


@pytest.mark.full
def test_a_resume_and_a_replay_get_the_same_number(cycle: Path, command: Command) -> None:
    words = ["run", "cycle.py", "accumulate.every=4", "finish.after=3 epochs"]
    whole = command(*words, "--run-dir", "whole")
    first = command(*words, "--run-dir", "r", "--until", "14 batches")
    second = command(*words, "--run-dir", "r")
    assert first.out == second.out == "steps 9\n"
    assert "code, arguments, data, versions, threads unchanged: exact" in second.err
    digest = whole.err.rpartition("digest ")[2]
    assert digest == second.err.rpartition("digest ")[2]
    verified = command("verify", "cycle.py", "--run-dir", "r")
    assert verified.code == 0, verified.err
    assert set(verified.out.splitlines()) >= {"steps 9"}


def test_what_the_run_is_called_cannot_be_set(cycle: Path, command: Command) -> None:
    result = command("run", "cycle.py", "run=3", "--run-dir", "r")
    assert result.code == 2
    assert "`run` is not an argument of cycle.py:setup that can be set" in result.err


def test_an_ending_by_time_is_an_error_with_the_parameter(cycle: Path, command: Command) -> None:
    result = command("run", "cycle.py", "finish.after=2 hours", "--run-dir", "r")
    assert result.code == 2
    assert 'run.steps: `finish.after` = "2 hours"' in result.err
    assert 'count epochs or steps, as in finish.after = "10 epochs"' in result.err
