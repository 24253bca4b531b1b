"""The graph of a script is one graph, whichever command is given the script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph
from tests.looking.conftest import Command
from tests.looking.running import TINY, in_a_process, python

EDITED = 'graphtrain.Graph.load("fit").set("finish", after="2 steps")'
GUARDED = '\nif __name__ == "__main__":\n    graphtrain.main({})\n'
NAMED = f"import graphtrain\n{TINY}\ngraph = {EDITED}\n" + GUARDED.format("setup")


def status_of(run_dir: str) -> dict[str, Any]:
    return dict(json.loads((Path(run_dir) / "status.json").read_text()))


# What stands in a script in place of `graph = ...` and of the call of main; all of them are the edited graph.
KNOWN = {
    "its name": (f"graph = {EDITED}", GUARDED.format("setup")),
    "its name and no main": (f"graph = {EDITED}", ""),
    "the path of a file": ('graph = "mine.toml"', GUARDED.format("setup")),
    "imported": ("from nets import graph", GUARDED.format("setup")),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("pieces", KNOWN.values(), ids=KNOWN)
def test_every_command_uses_the_graph_of_the_script(pieces: tuple[str, str], folder: Path, command: Command) -> None:
    definition, call = pieces
    (folder / "nets.py").write_text(f"import graphtrain\ngraph = {EDITED}\n")
    (folder / "mine.toml").write_text('format = 1\nextends = "fit"\n[[edit]]\nset = "finish"\nafter = "2 steps"\n')
    (folder / "train.py").write_text(f"import graphtrain\n{TINY}\n{definition}\n{call}")
    assert command("run", "train.py", "--run-dir", "r", "--quiet").code == 0
    assert status_of("r")["step"] == 2
    assert "2 steps" in command("show", "train.py").out
    listed = command("run", "train.py", "finish", "--help").out
    assert "2 steps" in listed.rpartition("finish.after")[2].splitlines()[0]


@pytest.mark.full
def test_a_run_begun_by_python_is_resumed_by_the_command(folder: Path) -> None:
    (folder / "train.py").write_text(NAMED)
    first = python("train.py", "--run-dir", "r", "--until", "1 steps", cwd=folder)
    assert first.code == 0, first.err
    second = in_a_process("run", "train.py", "--run-dir", "r", cwd=folder)
    assert "unchanged: exact" in second.err and status_of("r")["step"] == 2


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
    assert status_of("r")["step"] == 2
    listed = command("run", "--graph", "train.py", "other.py", "finish", "--help").out
    assert "2 steps" in listed.rpartition("finish.after")[2]


def test_a_graph_file_never_imports_a_script(folder: Path, command: Command) -> None:
    (folder / "train.py").write_text("open('imported', 'w').close()\n" + NAMED)
    (folder / "mine.toml").write_text('format = 1\nextends = "train.py"\n')
    assert command("show", "mine.toml").code == 2
    assert not (folder / "imported").exists()
