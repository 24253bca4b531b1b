"""`setup(run)`: the number of steps of the run, as the command line makes it; the same at a resume and a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.looking.conftest import Command

SCRIPT = """\
import torch


def training_step(model, batch):
    return model(batch).square().mean()


def setup(run, lr: float = 0.1, batches: int = 10):
    train_data = [torch.randn(2, 2) for _ in range(batches)]
    steps = run.steps(train_data)
    print("steps", steps, run.steps(train_data, node="next_batch"))
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
def script(folder: Path) -> Path:
    (folder / "cycle.py").write_text(SCRIPT)
    return folder


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["accumulate.every=4", "finish.after=3 epochs"], "steps 9 30"),
        (["accumulate.every=4", "finish.after=7 steps", "batches=11"], "steps 7 26"),
        (["accumulate.every=4", "finish.after=3 epochs", "--overlay", "carry"], "steps 8 30"),
        (["accumulate.every=4", "finish.after=3 epochs", "--overlay", "drop", "--overlay", "ema"], "steps 6 30"),
    ],
)
def test_it_is_the_run_of_the_command_line(words: list[str], printed: str, script: Path, command: Command) -> None:
    result = command("run", "cycle.py", *words, "--run-dir", "r")
    assert result.code == 0, result.err
    assert result.out.splitlines() == [printed]
    assert "is made for" not in result.err


@pytest.mark.full
def test_a_resume_and_a_replay_get_the_same_number(script: Path, command: Command) -> None:
    words = ["run", "cycle.py", "accumulate.every=4", "finish.after=3 epochs"]
    whole = command(*words, "--run-dir", "whole")
    first = command(*words, "--run-dir", "r", "--until", "14 batches")
    second = command(*words, "--run-dir", "r")
    assert first.out == second.out == "steps 9 30\n"
    assert "code, arguments, data, versions, threads unchanged: exact" in second.err
    digest = whole.err.rpartition("digest ")[2]
    assert digest == second.err.rpartition("digest ")[2]
    verified = command("verify", "cycle.py", "--run-dir", "r")
    assert verified.code == 0, verified.err
    assert set(verified.out.splitlines()) >= {"steps 9 30"}


def test_what_the_run_is_called_cannot_be_set(script: Path, command: Command) -> None:
    result = command("run", "cycle.py", "run=3", "--run-dir", "r")
    assert result.code == 2
    assert "`run` cannot be set: cycle.py:setup receives the run itself by that name" in result.err


def test_an_ending_by_time_is_an_error_with_the_parameter(script: Path, command: Command) -> None:
    result = command("run", "cycle.py", "finish.after=2 hours", "--run-dir", "r")
    assert result.code == 2
    assert 'run.steps: `finish.after` = "2 hours" ends by time' in result.err
    assert 'count epochs or steps, as in finish.after = "10 epochs"' in result.err


def test_another_ending_at_a_resume_is_reported(script: Path, command: Command) -> None:
    (script / "fixed.py").write_text(SCRIPT.replace("total_steps=steps", "total_steps=40"))
    result = command("run", "fixed.py", "finish.after=3 epochs", "--run-dir", "r")
    assert "`scheduler` is made for 40 steps (OneCycleLR.total_steps), and the run takes 30 with it" in result.err
