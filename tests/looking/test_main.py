"""A script that is the whole command, and the help on what can be set."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.looking.conftest import Command
from tests.looking.running import TINY, Result, environment, python

MAIN = '\nif __name__ == "__main__":\n    import graphtrain\n    graphtrain.main(setup)\n'

WORKERS = '''\
import torch
from torch.utils.data import DataLoader, Dataset
import graphtrain


class Numbers(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.full((1,), index / 64) + torch.randn(1)


def training_step(model, batch):
    return model(batch).square().mean()


def setup(loader: str = "Loader", start: str = "spawn", workers: int = 2):
    """Arguments:
        loader: Loader or DataLoader.
        start: how workers are started.
    """
    model = torch.nn.Linear(1, 1)
    make = graphtrain.Loader if loader == "Loader" else DataLoader
    data = make(Numbers(), batch_size=4, num_workers=workers, multiprocessing_context=start if workers else None)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "train_data": data,
        "training_step": training_step,
    }


graphtrain.main(setup)
'''


def new_python(*words: str, cwd: Path, timeout_seconds: float = 300) -> Result:
    """A process that begins with nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        env=environment(),
    )
    return Result(done.returncode, done.stdout, done.stderr)


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


def test_an_error_is_reported_as_by_the_command(script: Path) -> None:
    result = python("train.py", "lr=fast", cwd=script)
    assert (result.code, "Traceback" in result.err) == (2, False), result.err
    assert 'error: train.py:setup: lr: expected a number, got "fast"' in result.err
    assert not (script / "runs").exists()


@pytest.mark.full
def test_the_graph_of_the_script_is_used_unless_another_is_named(script: Path) -> None:
    edited = 'import graphtrain\ngraph = graphtrain.Graph.load("fit").set("finish", after="2 steps")\n'
    (script / "train.py").write_text(TINY + edited + MAIN)
    assert python("train.py", "--run-dir", "a", cwd=script).code == 0
    assert status_of(script / "a")["step"] == 2
    assert python("train.py", "--run-dir", "b", "finish.after=3 steps", cwd=script).code == 0
    assert status_of(script / "b")["step"] == 3
    assert python("train.py", "--run-dir", "c", "--graph", "fit", cwd=script).code == 0
    assert status_of(script / "c")["step"] == 40


def test_help_lists_what_can_be_set(script: Path, command: Command) -> None:
    shown = python("train.py", "--help", cwd=script)
    assert shown.code == 0, shown.err
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["lr", "0.1", "number"] in lines
    assert ["batches", "4", "integer"] in lines
    listed = shown.out.partition("Nodes with parameters, as in --help next_batch\n")[2].replace(",", " ").split()
    assert {"accumulate", "finish", "validate/next_batch"} <= {*listed}
    assert "Usage: python train.py" in shown.out
    small = python("train.py", "--help", cwd=script, env={**os.environ, "COLUMNS": "80"}).out.splitlines()
    assert 40 < len(small) <= 61
    assert [line for line in small if len(line) > 80] == []
    by_command = command("run", "train.py", "--help", "accumulate", "validate/next_batch")
    lines = [line.split() for line in by_command.out.splitlines()]
    assert any(line[:4] == ["accumulate.every", "1", "integer", ">"] for line in lines)
    assert any(line[:2] == ["validate/next_batch.limit", "none"] for line in lines)
    by_command = command("run", "train.py", "--help", "--graph", "evaluate")
    assert by_command.code == 0
    listed = by_command.out.partition("Nodes with parameters")[2]
    assert "Arguments of setup" in by_command.out and "next_batch" in listed and "accumulate" not in listed
    wrong = command("run", "train.py", "--help", "acumulate")
    assert wrong.code == 2
    assert wrong.err == (
        "error: --help: no node `acumulate` of `fit` has parameters\n  hint: did you mean `accumulate`?\n"
    )


def test_types_and_defaults_of_a_setup_are_words(folder: Path, command: Command) -> None:
    signature = (
        "layer: type = torch.nn.Linear, call=lambda x: x, make: 'Callable[[], int] | None' = None, thing: object = 1"
    )
    text = "from collections.abc import Callable\n" + TINY.replace("lr: float = 0.1", f"lr: float = 0.1, {signature}")
    (folder / "typed.py").write_text(text)
    out = command("run", "typed.py", "--help").out
    lines = [line.split() for line in out.partition("Arguments of setup")[2].splitlines()]
    for words in ("lr 0.1 number", "layer Linear class", "call a function", "make none function", "thing 1 any value"):
        assert words.split() in lines


@pytest.mark.full
def test_help_without_a_script_imports_nothing(script: Path) -> None:
    code = (
        "import sys, graphtrain.command as c\nsys.argv[1:] = ['run', '--help']\n"
        "try: c.main()\nfinally: print('torch' in sys.modules)"
    )
    result = new_python("-c", code, cwd=script)
    assert result.out.rstrip().endswith("False"), result


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("loader", "start", "number"),
    [
        pytest.param("Loader", "spawn", signal.SIGTERM, marks=pytest.mark.sweep),
        pytest.param("Loader", "forkserver", signal.SIGINT, marks=pytest.mark.sweep),
        pytest.param("Loader", "fork", signal.SIGTERM, marks=pytest.mark.sweep),
        pytest.param("DataLoader", "spawn", signal.SIGUSR1, marks=pytest.mark.sweep),
        pytest.param("DataLoader", "forkserver", signal.SIGHUP, marks=pytest.mark.sweep),
        ("DataLoader", "fork", signal.SIGINT),
    ],
)
def test_workers_however_they_are_started(loader: str, start: str, number: int, folder: Path) -> None:
    """Not even a guard is needed: in a worker, `main` does nothing. A signal reaches all, and the run stops well."""
    (folder / "train.py").write_text(WORKERS)
    words = [
        sys.executable,
        "train.py",
        f"loader={loader}",
        f"start={start}",
        "finish.after=1 epochs",
        "log.every=1 steps",
    ]
    process = subprocess.Popen(
        [*words, "--run-dir", "r"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
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
    text = TINY.replace(
        "    return {\n", '    def log(metrics, step):\n        print("row", step)\n    return {"loggers": [log],\n'
    )
    (script / "logged.py").write_text(text)
    result = command("run", "logged.py", "finish.after=2 steps", "log.every=1 steps")
    assert result.code == 0, result.err
    assert [line for line in result.out.splitlines() if line.startswith("row")][:2] == ["row 1", "row 2"]
    (script / "wrong.py").write_text(text.replace("[log]", "[7]"))
    result = command("run", "wrong.py")
    assert (result.code, "`loggers` with a int, which is not callable" in result.err) == (2, True)


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
