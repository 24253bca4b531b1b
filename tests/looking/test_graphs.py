"""Promises 1, 5, 6: commands that train nothing: check, render, show, diff, copy, graphs, nodes, new; and help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from graphtrain import Graph
from tests.looking.conftest import Command
from tests.looking.running import arguments, environment
from tests.shipped import GRAPHS, KINDS, ROOT

COMMANDS = (
    *("run", "check", "show", "render", "diff", "graphs", "nodes", "copy", "new", "ls", "status", "explain"),
    *("verify", "replay", "export", "test", "predict", "report", "watch"),
)


@pytest.mark.full
def test_the_script_of_new_trains_and_its_figures_make_sense(folder: Path, command: Command) -> None:
    written = command("new")
    assert (written.code, written.out) == (0, "wrote train.py; train with: python train.py\n")
    done = command("run", "train.py", "finish.after=1 epochs", "--run-dir", "r")
    assert done.code == 0, done.err
    assert '"val/accuracy": 0.9' in command("ls", ".", "--json").out


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
@pytest.mark.parametrize("graph", GRAPHS)
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
    assert (problem["code"], problem["path"][0], problem["path"][-1]) == ("G405", "step", "train_batch")


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
    assert without.code == 2 and "error G102: unknown kind `jitter`\n    a node with another name" in without.out
    assert command("check", "my.toml", "--script", "kinds.py").code == 0
    (folder / "my.toml").write_text(WITH_OWN_KIND.replace("2.0", '"big"'))
    wrong = command("check", "my.toml", "--script", "kinds.py:setup")
    assert wrong.code == 2 and "jitter.scale: expected a number" in wrong.out


# --- render, show, copy, graphs, nodes -------------------------------------------------------------------------------


def test_render_shows_where_a_run_is_and_what_was_bypassed(tiny: Path, command: Command) -> None:
    assert command("run", "tiny.py", "--run-dir", "r", "--until", "6 steps").code == 0
    assert command("render", "r", "-o", "hot.dot").code == 0
    assert "6 runs" in (tiny / "hot.dot").read_text() and "current" in (tiny / "hot.dot").read_text()
    assert command("run", "tiny.py", "--run-dir", "r", "finish.after=8 steps").code == 0
    assert command("render", "r", "-o", "done.dot").code == 0
    text = (tiny / "done.dot").read_text()
    assert "8 runs" in text and "runs next" not in text and "current" not in text
    assert text.count(">bypassed<") >= 2, "schedule and exchange"


def test_show(command: Command) -> None:
    result = command("show", "fit")
    assert (result.code, result.err) == (0, "")
    fit = Graph.load("fit")
    for text in (*fit.nodes, *fit.guards, *fit.guards.values(), *fit.units.values()):
        assert text in result.out
    for edges in fit.edges.values():
        assert all(str(edge) in result.out for edge in edges)
    assert "graph evaluate: start begin_evaluation" in result.out


def test_graphs(command: Command) -> None:
    result = command("graphs")
    assert (result.code, result.err) == (0, "")
    graphs, overlays = ([line.split() for line in table.splitlines()] for table in result.out.split("\n\n"))
    assert {*GRAPHS} <= {words[0] for words in graphs[1:]}
    assert all(len(words) > 6 and words[-1].endswith(".") for words in graphs[1:]), "each with what it does"
    assert overlays[0][0] == "overlay" and "ema" in {words[0] for words in overlays}


def test_nodes_lists_every_kind(command: Command) -> None:
    result = command("nodes")
    assert "``" not in result.out
    assert (result.code, result.err) == (0, "")
    listed = [line.split() for line in result.out.splitlines()[1:] if not line.startswith(" ")]
    names = [words[0] for words in listed]
    assert {*KINDS} <= {*names} and names == sorted(names)
    assert all(len(words) > 3 for words in listed), "each with what it does"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("clip", ["max_norm: a number > 0, default inf", "set up with", "optimizer", "`max_norm`"]),
        ("train_batch", ["model, batch, training_step", "window (optional)", "writes", "loss", "backward"]),
        ("finish", ['after: a trigger such as "100 steps", default "never"', "due"]),
        ("checkpoint", ['default "async"', 'default "1 epochs"', "best: a string, optional"]),
        ("next_batch", ["repeat: true or false, default false"]),
        ("schedule", ["bypassed without", "scheduler"]),
    ],
)
def test_nodes_describes_a_kind(kind: str, expected: list[str], command: Command) -> None:
    result = command("nodes", kind)
    assert (result.code, result.err) == (0, "")
    assert all(text in result.out for text in expected), result.out


def test_copy_keeps_every_character_and_overwrites_nothing(folder: Path, command: Command) -> None:
    shipped = ROOT / "graphs" / "fit.toml"
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


# --- help


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_every_option_a_description(name: str, command: Command) -> None:
    result = command(name, "--help")
    assert (result.code, result.err) == (0, "") and result.out == command(name, "-h").out
    options, _, examples = result.out.rpartition("Examples:")
    assert f"graphtrain {name}" in examples
    described = [line.split("  ") for line in options.partition("Options")[2].splitlines() if line.startswith("  -")]
    assert described and all(len([*filter(None, words)]) >= 2 or len("  ".join(words)) > 20 for words in described)
    assert f"\n  {name} " in command("--help").out


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
        ([*run, "accumulate.every=2"], "from this one: --fork 'a b/r'"),
        ([*run, "--overlay", "ema"], "--fork 'a b/r'"),
    ):
        result = command(*words)
        assert shown in result.out + result.err, (words, result)


# ---- two graphs, and resumes on a changed graph as they are typed

MINE = 'format = 1\nextends = "fit"\nname = "fit"\n'
RUN = ("run", "tiny.py", "accumulate.every=2", "log.every=1 steps")


@pytest.fixture
def stopped(tiny: Path, command: Command) -> Path:
    """A run directory ``r`` whose run is at ``decide``, after one step and in an open window."""
    assert command(*RUN, "finish.after=2 epochs", "--run-dir", "r", "--until", "3 batches", "--quiet").code == 0
    return tiny


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
        ["+", "node", "pause", "choice", "->", "zero_grad"],
        ["-", "edge", "step", "zero_grad"],
        ["+", "edge", "step", "pause"],
    ]


def test_names_files_run_directories_and_checkpoints(stopped: Path, command: Command) -> None:
    (stopped / "my.toml").write_text(MINE)
    checkpoint = next((stopped / "r" / "checkpoints").iterdir())
    for graph in ("fit", "my.toml"):
        for other in ("r", str(checkpoint)):
            out = command("diff", graph, other).out
            assert "3 differences" in out and "accumulate.every" in out, (graph, other)
    assert "no difference" in command("diff", "r", str(checkpoint)).out
    assert command("show", "r").out.startswith("graph fit: start decide")


@pytest.mark.full
def test_an_unsound_checkpoint_is_passed_over(stopped: Path, command: Command) -> None:
    more = ("finish.after=5 epochs", "checkpoint.keep=100", "--until", "5 batches", "--quiet")
    assert command(*RUN, *more, "--run-dir", "r").code == 0
    checkpoints = sorted((stopped / "r" / "checkpoints").iterdir())
    assert "5 epochs" in command("diff", "fit", "r").out
    for later in checkpoints[1:]:
        data = bytearray((later / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (later / "model.safetensors").unlink()  # which may be the same file in several checkpoints
        (later / "model.safetensors").write_bytes(data)
    result = command("diff", "fit", "r")
    assert "2 epochs" in result.out and "skipped a damaged checkpoint" in result.err
    named = command("diff", "fit", str(checkpoints[-1]))
    assert named.code == 1 and "does not match its checksum" in named.err


def test_a_renaming_is_applied_if_given(command: Command, folder: Path) -> None:
    (folder / "my.toml").write_text(MINE + '[[edit]]\nrename = "decide"\nnew = "what_now"\n')
    assert command("diff", "fit", "my.toml", "--rename", "decide=what_now").out == "fit -> my.toml: no difference\n"


@pytest.mark.full
def test_a_run_directory_needs_no_torch(stopped: Path) -> None:
    command = [sys.executable, "-X", "importtime", *arguments("diff", "fit", "r")[1:]]
    done = subprocess.run(command, cwd=stopped, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0 and "accumulate.every" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "graphtrain.storage.manifest" in imported
    assert not {name for name in imported if name in ("torch", "numpy") or name.startswith("graphtrain.nodes")}


@pytest.mark.full
@pytest.mark.parametrize("by_path", [True, False])
def test_the_saved_graph_of_a_named_checkpoint_and_of_a_fork(by_path: bool, stopped: Path, command: Command) -> None:
    (checkpoint,) = (stopped / "r" / "checkpoints").iterdir()
    more = ("finish.after=5 epochs", "checkpoint.keep=100", "--until", "5 batches", "--quiet")
    assert command(*RUN, *more, "--run-dir", "r").code == 0
    named = str(checkpoint) if by_path else checkpoint.name
    result = command("run", "tiny.py", "--graph", "saved", "--run-dir", "r", "--resume", named)
    assert result.code == 0 and json.loads(Path("r/status.json").read_text())["epoch"] == 2
    forked = command("run", "tiny.py", "--graph", "saved", "--run-dir", "other", "--fork", "r")
    assert forked.code == 0 and "finish.after" in command("diff", "fit", "other").out
