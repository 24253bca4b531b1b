"""`graphtrain diff`, and resumes on a changed graph as they are typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.command.conftest import Command
from tests.command.running import arguments, environment

MINE = 'format = 1\nextends = "fit"\nname = "fit"\n'
RENAMED = MINE + '[[edit]]\nrename = "decide"\nnew = "what_now"\n'
NOISY = """
from graphtrain import node

@node(writes="noise")
def draw_noise(): return torch.zeros(1)

@node
def use_noise(noise): pass
"""
RUN = ("run", "tiny.py", "accumulate.every=2", "log.every=1 steps")


@pytest.fixture
def stopped(tiny: Path, command: Command) -> Path:
    """A run directory ``r`` whose run is at ``decide``, after one step and in an open window."""
    (tiny / "tiny.py").write_text((tiny / "tiny.py").read_text() + NOISY)
    assert command(*RUN, "finish.after=2 epochs", "--run-dir", "r", "--until", "3 batches", "--quiet").code == 0
    return tiny


def status(run_dir: str = "r") -> dict[str, Any]:
    return json.loads((Path(run_dir) / "status.json").read_text())


def weights(run_dir: str) -> dict[str, list[Any]]:
    newest = sorted((Path(run_dir) / "checkpoints").iterdir())[-1]
    return {name: tensor.tolist() for name, tensor in load_file(newest / "model.safetensors").items()}


def whole(command: Command) -> dict[str, list[Any]]:
    assert command(*RUN, "finish.after=2 epochs", "--run-dir", "whole", "--quiet").code == 0
    return weights("whole")


# ---- diff


def test_a_table_of_what_differs(command: Command, folder: Path) -> None:
    (folder / "my.toml").write_text(
        MINE
        + '[[edit]]\ninsert = "pause"\nuse = "choice"\nafter = "step"\n[[edit]]\nset = "finish"\nafter = "2 epochs"\n'
    )
    result = command("diff", "fit", "my.toml")
    assert (result.code, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["fit", "->", "my.toml:", "4", "differences"]
    assert [line for line in lines if line[0] in "+-~"] == [
        ["~", "parameter", "finish.after", "10", "epochs", "2", "epochs"],
        ["+", "node", "pause", "choice"],
        ["~", "edge", "step", "zero_grad", "pause"],
        ["+", "edge", "pause", "zero_grad"],
    ]


def test_names_files_run_directories_and_checkpoints(stopped: Path, command: Command) -> None:
    (stopped / "my.toml").write_text(MINE)
    checkpoint = next((stopped / "r" / "checkpoints").iterdir())
    for graph in ("fit", "my.toml"):
        for other in ("r", str(checkpoint)):
            out = command("diff", graph, other).out
            assert "3 differences" in out and "accumulate.every" in out, (graph, other)
    assert "no difference" in command("diff", "r", str(checkpoint)).out
    assert command("show", "r").out.startswith("fit  start: decide")


@pytest.mark.full
def test_an_unsound_checkpoint_is_passed_over(stopped: Path, command: Command) -> None:
    more = ("finish.after=5 epochs", "checkpoint.keep=100", "--until", "5 batches", "--quiet")
    assert command(*RUN, *more, "--run-dir", "r").code == 0
    checkpoints = sorted((stopped / "r" / "checkpoints").iterdir())
    assert "5 epochs" in command("diff", "fit", "r").out
    for later in checkpoints[1:]:
        data = bytearray((later / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (later / "model.safetensors").write_bytes(data)
    result = command("diff", "fit", "r")
    assert "2 epochs" in result.out and "skipped a damaged checkpoint" in result.err
    named = command("diff", "fit", str(checkpoints[-1]))
    assert named.code == 1 and "does not match its checksum" in named.err


def test_a_renaming_is_applied_if_given(command: Command, folder: Path) -> None:
    (folder / "my.toml").write_text(RENAMED)
    assert command("diff", "fit", "my.toml", "--rename", "decide=what_now").out == "fit -> my.toml: no difference\n"
    refused = command("diff", "fit", "my.toml", "--rename", "decid=what_now")
    assert refused.code == 2 and "did you mean `decide`" in refused.err


@pytest.mark.parametrize(
    "words", [("nix", "fit"), ("fit", "nix.toml"), ("fit", "empty"), ("fit", "fit", "-o", "x.bmp")]
)
def test_what_cannot_be_compared(words: tuple[str, ...], folder: Path, command: Command) -> None:
    (folder / "empty" / "checkpoints").mkdir(parents=True)
    result = command("diff", *words)
    assert result.code == 2 and result.err.startswith("error: ") and "Traceback" not in result.err


@pytest.mark.full
def test_a_picture(command: Command, folder: Path) -> None:
    result = command("diff", "fit", "evaluate", "-o", "difference.svg")
    assert result.code == 0 and result.out.endswith("wrote difference.svg\n")
    assert "<svg" in (folder / "difference.svg").read_text()


@pytest.mark.full
def test_a_run_directory_needs_no_torch(stopped: Path) -> None:
    command = [sys.executable, "-X", "importtime", *arguments("diff", "fit", "r")[1:]]
    done = subprocess.run(command, cwd=stopped, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0 and "accumulate.every" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "graphtrain.storage.manifest" in imported
    assert not {name for name in imported if name in ("torch", "numpy") or name.startswith("graphtrain.nodes")}


# ---- every class of change on a resume


@pytest.mark.full
@pytest.mark.parametrize("by_path", [True, False])
def test_the_saved_graph_of_a_named_checkpoint_and_of_a_fork(by_path: bool, stopped: Path, command: Command) -> None:
    (checkpoint,) = (stopped / "r" / "checkpoints").iterdir()
    more = ("finish.after=5 epochs", "checkpoint.keep=100", "--until", "5 batches", "--quiet")
    assert command(*RUN, *more, "--run-dir", "r").code == 0
    named = str(checkpoint) if by_path else checkpoint.name
    result = command("run", "tiny.py", "--graph", "saved", "--run-dir", "r", "--resume", named)
    assert result.code == 0 and status()["epoch"] == 2
    forked = command("run", "tiny.py", "--graph", "saved", "--run-dir", "other", "--fork", "r")
    assert forked.code == 0 and "finish.after" in command("diff", "fit", "other").out
    assert "finish.after" in command("run", "tiny.py", "--graph", "saved", "--run-dir", "r", "--help").out


@pytest.mark.parametrize("words", [(), ("--run-dir", "none"), ("--run-dir", "none", "--resume", "never")])
def test_there_is_no_saved_graph(words: tuple[str, ...], tiny: Path, command: Command) -> None:
    result = command("run", "tiny.py", "--graph", "saved", *words)
    assert result.code == 2 and result.err.startswith("error: ") and not (tiny / "none").exists()
