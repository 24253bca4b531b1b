"""`graphtrain new`: a script to begin with, which runs as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command.conftest import Command


@pytest.mark.full
def test_the_script_trains_and_its_figures_make_sense(folder: Path, command: Command) -> None:
    written = command("new")
    assert (written.code, written.out) == (0, "wrote train.py; train with: python train.py\n")
    done = command("run", "train.py", "finish.after=1 epochs", "--run-dir", "r")
    assert done.code == 0, done.err
    listed = command("ls", ".", "--json")
    assert '"val/accuracy": 0.9' in listed.out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine.py", "`mine.py` exists; a file is never overwritten\n  hint: choose another name\n"),
        ("notes.txt", "`notes.txt` is not the name of a script\n  hint: letters, digits and underscores, and .py\n"),
        ("1st.py", "`1st.py` is not the name of a script\n  hint: letters, digits and underscores, and .py\n"),
        ("nowhere/a.py", "cannot write `nowhere/a.py`: No such file or directory\n"),
    ],
)
def test_nothing_is_overwritten(name: str, message: str, folder: Path, command: Command) -> None:
    (folder / "mine.py").write_text("mine")
    result = command("new", name)
    assert (result.code, result.err) == (2, f"error: {message}")
    assert (folder / "mine.py").read_text() == "mine"
