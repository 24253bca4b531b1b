"""The commands that train nothing: check, render, show, copy, graphs, nodes; help and version."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph
from graphtrain.command.cli import COMMANDS
from graphtrain.graph.registry import find_graph, known_graphs, known_kinds
from graphtrain.report.snapshot import Snapshot
from tests.command.conftest import Command
from tests.command.running import arguments, environment

OWN_KIND = """\
from graphtrain import node

@node(writes="noise")
def jitter(*, scale: float = 1.0):
    return scale
"""

WITH_OWN_KIND = """\
format = 1
extends = "fit"
[[edit]]
insert = "jitter"
scale = 2.0
after = "zero_grad"
"""


# --- check -----------------------------------------------------------------------------------------------------------


@pytest.mark.first(7)
@pytest.mark.parametrize("graph", known_graphs())
def test_shipped_graphs_are_sound(graph: str, command: Command) -> None:
    result = command("check", graph)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{graph}: no problems ({len(Graph.load(graph).nodes)} nodes)\n"
    assert command("check", graph, "--json").out == "[]\n"


def test_check_as_json(folder: Path, command: Command) -> None:
    (folder / "my.toml").write_text('format = 1\nextends = "fit"\n[[edit]]\nset = "clip"\nmax_norm = "fast"\n')
    result = command("check", "my.toml", "--json")
    assert result.code == 2
    (problem,) = json.loads(result.out)
    assert (problem["code"], problem["severity"], problem["path"]) == ("G104", "error", [])
    assert problem["where"].startswith("my.toml:3 ") and 'got "fast"' in problem["message"]
    (folder / "my.toml").write_text('format = 1\nextends = "fit"\n[[edit]]\nremove = "zero_grad"\n')
    (problem,) = json.loads(command("check", "my.toml", "--json").out)
    assert list(problem) == ["code", "severity", "where", "message", "hint", "path"]
    assert (problem["code"], problem["path"][0], problem["path"][-1]) == ("G405", "decide", "train_batch")


def test_a_graph_is_checked_for_several_ranks_where_that_is_asked(folder: Path, command: Command) -> None:
    (folder / "my.toml").write_text('format = 1\nextends = "fit"\n[[edit]]\nremove = "exchange"\n')
    assert command("check", "my.toml").code == 0
    result = command("check", "my.toml", "--ranks")
    assert result.code == 2
    assert "error G702: `step` steps `optimizer` with gradients that were not exchanged" in result.out
    assert command("check", "fit", "--ranks").out == "fit: no problems (15 nodes)\n"
    assert "they synchronise in it" in command("nodes", "exchange").out
    assert "they synchronise in it" not in command("nodes", "clip").out


def test_a_script_declares_kinds(folder: Path, command: Command) -> None:
    (folder / "kinds.py").write_text(OWN_KIND)
    (folder / "my.toml").write_text(WITH_OWN_KIND)
    assert "there is no kind `jitter`" in command("nodes", "jitter").err
    without = command("check", "my.toml")
    assert without.code == 2 and "error G102: unknown kind `jitter`\n    declare it with @node" in without.out
    assert command("check", "my.toml", "--script", "kinds.py").code == 0
    (folder / "my.toml").write_text(WITH_OWN_KIND.replace("2.0", '"big"'))
    wrong = command("check", "my.toml", "--script", "kinds.py:setup")
    assert wrong.code == 2 and "jitter.scale: expected a number" in wrong.out


# --- render, show, copy, graphs, nodes -------------------------------------------------------------------------------

BEGINNINGS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "dot": b"digraph", "mmd": b"flowchart"}


@pytest.mark.full
@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_render(suffix: str, folder: Path, command: Command) -> None:
    result = command("render", "fit", "-o", f"fit.{suffix}")
    assert (result.code, result.out, result.err) == (0, f"wrote fit.{suffix}\n", "")
    content = (folder / f"fit.{suffix}").read_bytes()
    assert BEGINNINGS[suffix] in content[:300]
    if suffix in ("svg", "dot", "mmd"):
        assert all(name.encode() in content for name in Graph.load("fit").nodes)


def test_render_shows_where_a_run_is(tiny: Path, command: Command) -> None:
    assert command("run", "tiny.py", "--run-dir", "r", "--until", "6 steps").code == 0
    assert command("render", "fit", "-o", "plain.dot").code == 0
    assert command("render", "fit", "-o", "hot.dot", "--run-dir", "r").code == 0
    assert "6 runs" in (tiny / "hot.dot").read_text()
    assert "6 runs" not in (tiny / "plain.dot").read_text()


def test_render_of_a_finished_run_shows_no_next_node_and_what_was_bypassed(tiny: Path, command: Command) -> None:
    assert command("run", "tiny.py", "--run-dir", "r", "finish.after=2 steps").code == 0
    assert command("render", "r", "-o", "done.dot", "--run-dir", "r").code == 0
    text = (tiny / "done.dot").read_text()
    assert "runs next" not in text and "current" not in text
    assert text.count(">bypassed<") >= 2, "schedule and exchange"


def test_show(command: Command) -> None:
    result = command("show", "fit")
    assert (result.code, result.err) == (0, "")
    fit = Graph.load("fit")
    for text in (*fit.nodes, *fit.guards, *fit.guards.values(), *fit.units.values()):
        assert text in result.out
    for edges in fit.edges.values():
        assert all(str(edge) in result.out for edge in edges)
    assert "fit/validate  start: begin_evaluation" in result.out


def test_graphs(command: Command) -> None:
    result = command("graphs")
    assert (result.code, result.err) == (0, "")
    graphs, overlays = ([line.split() for line in table.splitlines()] for table in result.out.split("\n\n"))
    assert [words[0] for words in graphs[1:]] == known_graphs()
    assert all(len(words) > 6 and words[-1].endswith(".") for words in graphs[1:]), "each with what it does"
    assert overlays[0][0] == "overlay" and "ema" in {words[0] for words in overlays}


def test_nodes_lists_every_kind(command: Command) -> None:
    result = command("nodes")
    assert (result.code, result.err) == (0, "")
    listed = [line.split() for line in result.out.splitlines()[1:] if not line.startswith(" ")]
    assert [words[0] for words in listed] == known_kinds()
    assert all(len(words) > 3 for words in listed), "each with what it does"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("clip", ["max_norm: a number > 0, default inf", "set up with", "optimizer", "`max_norm`"]),
        ("train_batch", ["model, batch, training_step", "window (optional)", "writes", "loss", "backward"]),
        ("finish", ["after: a trigger", "due"]),
        ("schedule", ["bypassed without", "scheduler"]),
    ],
)
def test_nodes_describes_a_kind(kind: str, expected: list[str], command: Command) -> None:
    result = command("nodes", kind)
    assert (result.code, result.err) == (0, "")
    assert all(text in result.out for text in expected), result.out


def test_copy_keeps_every_character_and_overwrites_nothing(folder: Path, command: Command) -> None:
    shipped = find_graph("fit")
    assert shipped is not None
    result = command("copy", "fit", "my_fit.toml")
    assert (result.code, result.err) == (0, "")
    assert (folder / "my_fit.toml").read_bytes() == shipped.read_bytes()
    assert "--graph my_fit.toml" in result.out
    (folder / "my_fit.toml").write_bytes(b"# mine\r\n" + shipped.read_bytes())
    again = command("copy", "fit", "my_fit.toml")
    assert again.code == 2 and "`my_fit.toml` exists" in again.err
    assert (folder / "my_fit.toml").read_bytes().startswith(b"# mine\r\n")
    assert command("copy", "my_fit.toml", "third.toml").code == 0
    assert (folder / "third.toml").read_bytes() == b"# mine\r\n" + shipped.read_bytes()


# --- status ----------------------------------------------------------------------------------------------------------


def write_status(folder: Path, **changes: Any) -> None:
    """The files in `r` of a run that is still running in this process."""
    snapshot = Snapshot(
        "running", "fit", "train_batch", step=40, epoch=2.5, end=("10 epochs",), done=0.25, batch=5, epoch_batches=10,
        metrics={"loss": 0.25, "val/loss": math.nan}, rates={"batches": 812.0}, elapsed_seconds=41.0,
        seconds_left=133.0, seconds={"data": 1.0, "train": 3.0},
    )  # fmt: skip
    status = {
        **snapshot.as_plain(),
        "checkpoint": "000007-step-40",
        "digest": "d1935",
        "process": os.getpid(),
        "host": socket.gethostname(),
        "written_at_unix_seconds": time.time() - 61,
        **changes,
    }
    leave_status(folder, status)


def leave_status(folder: Path, status: dict[str, Any]) -> None:
    (folder / "r").mkdir(exist_ok=True)
    (folder / "r" / "status.json").write_text(json.dumps(status))


def gone() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_status_of_a_run_that_is_running(folder: Path, command: Command) -> None:
    write_status(folder)
    result = command("status", "r")
    assert (result.code, result.err) == (0, "")
    first, *panel, checkpoint, digest, written = result.out.splitlines()
    assert first == "r: running, graph fit, next node train_batch"
    assert panel[0].startswith("  epoch 3/10 ━") and panel[0].endswith(" 25 %  batch 5/10 · step 40")
    assert panel[1:] == [
        "  loss 0.25  val/loss nan",
        "  812 batches/s  41 s elapsed  2 min 13 s left",
        "  time: data 25 %  train 75 %",
    ]
    assert (checkpoint, digest) == ("  newest checkpoint 000007-step-40", "  digest d1935")
    assert written == f"  written 1 min 01 s ago by process {os.getpid()}, which is alive"


def test_status_of_a_process_that_is_gone(folder: Path, command: Command) -> None:
    process = gone()
    write_status(folder, process=process)
    out = command("status", "r").out
    assert out.startswith("r: interrupted, graph fit, next node train_batch\n")
    assert f"by process {process}, which is gone" in out and " left" not in out
    plain = json.loads(command("status", "r", "--json").out)
    assert plain["state"] == "interrupted"
    assert {**plain, "state": ""} == {**status_file(folder), "state": ""}
    for name in ("000007-step-40", "000008-step-45"):  # the second was saved after the status was written
        (folder / "r" / "checkpoints" / name).mkdir(parents=True)
        (folder / "r" / "checkpoints" / name / "manifest.msgpack").touch()
        assert f"  newest checkpoint {name}\n" in (out := command("status", "r").out)
        assert ("  digest d1935\n" in out) == (name == "000007-step-40")
    write_status(folder, process=process, state="finished")
    assert command("status", "r").out.startswith("r: finished, graph fit\n"), "as it said itself"


def status_file(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "r" / "status.json").read_text())


# --- Help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_command_has_help_with_an_example(name: str, option: str, command: Command) -> None:
    result = command(name, option)
    assert (result.code, result.err) == (0, "")
    after = result.out.rpartition("Examples:")[2]
    assert f"graphtrain {name}" in after


def test_help_names_every_command(command: Command) -> None:
    result = command("--help")
    assert (result.code, result.err) == (0, "")
    section = result.out.partition("Commands:\n")[2].partition("\n\n")[0]
    listed = [line.split()[0] for line in section.splitlines() if line[:2].isspace() and not line[2:3].isspace()]
    assert listed == [name for name, module in COMMANDS.items() if find_spec(f"graphtrain.command.{module}")]


# --- In real processes -----------------------------------------------------------------------------------------------


EVERY_COMMAND = """
import sys
from graphtrain.command.cli import app
from graphtrain.graph.registry import known_graphs, known_kinds

def run(*words):
    try:
        app(list(words))
    except SystemExit as end:
        assert not end.code, words

for words in ("--help", "run --help", "graphs", "ls .", "render fit -o fit.svg", "copy fit my.toml",
              "diff fit evaluate -o difference.svg", *(f"show {graph}" for graph in known_graphs())):
    run(*words.split())
    assert not {"torch", "numpy"} & sys.modules.keys(), words
    assert "rich" not in sys.modules or "help" not in words, "help is text"
for words in (*(f"check {graph}" for graph in known_graphs()),
              *(f"nodes {kind}" for kind in known_kinds())):
    run(*words.split())
    assert not {"torch", "numpy"} & sys.modules.keys(), words
"""


@pytest.mark.full
def test_what_needs_no_torch_imports_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EVERY_COMMAND]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_a_reader_that_leaves(tmp_path: Path) -> None:
    process = subprocess.Popen(
        arguments("show", "fit"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr as file:
        assert file.read() == b""
    assert process.wait(300) in (0, 1)


@pytest.mark.full
def test_commands_that_are_shown_can_be_pasted(tiny: Path, command: Command) -> None:
    """Names with spaces are quoted."""
    (tiny / "a b").mkdir()
    run = ("run", "tiny.py", "finish.after=1 epochs", "--quiet", "--run-dir", "a b/r")
    assert command(*run).code == 0
    for words, shown in (
        (["new", "a b/train.py"], "train with: python 'a b/train.py'"),
        (["copy", "fit", "a b/mine.toml"], "--graph 'a b/mine.toml'"),
        ([*run, "accumulate.every=2"], "in a new directory: --fork 'a b/r')"),
        ([*run, "--overlay", "ema"], "--fork 'a b/r'"),
        ([*run[:-1], "c", "--init", "model=a b/r"], "graphtrain export 'a b/r' weights.safetensors"),
        (["render", "evaluate", "-o", "x.mmd", "--run-dir", "a b/r"], "graphtrain render 'a b/r' -o run.svg draws"),
    ):
        result = command(*words)
        assert shown in result.out + result.err, (words, result)
