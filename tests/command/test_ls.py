"""`graphtrain ls`: the runs below a folder."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from graphtrain.printable import shorten
from tests.command.conftest import Command
from tests.command.test_others import gone, write_status


@pytest.fixture
def runs(tiny: Path, command: Command) -> Path:
    """A finished run, a stopped one in a folder further down, and one that was killed; strangers among them."""
    assert command("run", "tiny.py", "finish.after=2 epochs", "--run-dir", "runs/first-9", "--quiet").code == 0
    assert command("run", "tiny.py", "--until", "6 steps", "--run-dir", "runs/more/deep/first-10", "--quiet").code == 0
    write_status(tiny, process=gone(), place="step 40, epoch 2.50, batch 5/10")
    os.rename("r", "runs/first-10")
    (tiny / "runs" / "notes").mkdir()
    (tiny / "runs" / "notes" / "status.json").write_text('{"colour": "red"}')
    (tiny / "runs" / "broken" / "checkpoints").mkdir(parents=True)
    (tiny / "runs" / "broken" / "status.json").write_text("{")
    (tiny / "runs" / "empty").mkdir()
    (tiny / "runs" / "file").touch()
    (tiny / "runs" / "link").symlink_to("more")
    return tiny


def rows(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]


@pytest.mark.full
@pytest.mark.parametrize("words", [["ls", "runs"], ["ls"], ["status", "runs"]], ids=" ".join)
def test_every_run_has_a_row(words: list[str], runs: Path, command: Command) -> None:
    result = command(*words)
    assert (result.code, result.err) == (0, "")
    heading, broken, first, killed, deep = rows(result.out)
    assert heading == ["run", "state", "place", "graph", "last metrics", "age", "resumable"]
    assert broken[:2] == ["runs/broken", "unreadable"]
    assert first[:4] == ["runs/first-9", "finished", "step 8, epoch 2, batch 4/4", "fit"]
    assert [metric.split()[0] for metric in first[4].split(", ")] == ["epoch/loss", "loss", "lr"]
    assert re.fullmatch(r"\d+ s ago", first[5]) and first[6] == "-"
    assert killed[:4] == ["runs/first-10", "interrupted", "step 40, epoch 2.50, batch 5/10", "fit"]
    assert killed[4:] == ["loss 0.25, val/loss nan", "1 min 01 s ago", "no checkpoint"]
    assert deep[:3] == ["runs/more/deep/first-10", "stopped", "step 6, epoch 1.50, batch 2/4"]
    assert deep[-1] == "yes"


def test_a_status_has_the_arguments_and_the_parameters(runs: Path, command: Command) -> None:
    finished = json.loads(command("ls", "runs", "--json").out)[1]
    assert finished["arguments"] == {"lr": 0.1, "batches": 4, "name": "tiny"}
    assert finished["parameters"]["finish.after"] == "2 epochs" and finished["parameters"]["accumulate.every"] == 1
    assert finished["error"] == finished["reason"] == ""


@pytest.fixture
def sweep(folder: Path) -> Path:
    """Four runs as their status files have them: one diverged, and one failed before it began."""
    for name, status in {
        "a": {
            "arguments": {"lr": 0.01, "width": 64},
            "metrics": {"val/loss": 0.5, "lr": 0.001},
            "best": {"value": 0.4},
            "best:accurate": {"value": 0.9},
        },
        "b": {"arguments": {"lr": 0.001, "width": 128}, "metrics": {"val/loss": 0.25}, "parameters": {"clip.by": 2}},
        "c": {"arguments": {"lr": 1e-05, "tag": "a  b"}, "metrics": {"val/loss": "nan"}, "best": {"value": 2}},
        "d": {"state": "failed", "error": "OSError: no\tdata (train.py:7)", "arguments": {"lr": 0.1, "width": True}},
    }.items():
        (folder / "runs" / name).mkdir(parents=True)
        whole = {"state": "finished", "position": "end", "written_at_unix_seconds": 1000 + ord(name), **status}
        (folder / "runs" / name / "status.json").write_text(json.dumps(whole))
    return folder


def test_columns_are_arguments_metrics_and_parameters(sweep: Path, command: Command) -> None:
    result = command("ls", "--columns", "lr,width, val/loss,clip.by,best,best:accurate,tag")
    assert result.err == "" and result.out == (
        "run     state     lr     width  val/loss  clip.by  best  best:accurate  tag\n"
        "runs/a  finished  0.01   64     0.5       -        0.4   0.9            -\n"
        "runs/b  finished  0.001  128    0.25      2        -     -              -\n"
        "runs/c  finished  1e-05  -      nan       -        2     -              a b\n"
        "runs/d  failed    0.1    true   -         -        -     -              -\n"
    )


@pytest.mark.parametrize(
    ("by", "order"),
    [
        *(("lr", "cbad"), ("-lr", "dabc"), ("val/loss", "bacd"), ("-val/loss", "abcd"), ("width", "dabc")),
        *(("age", "dcba"), ("state", "dabc"), ("-run", "dcba"), ("best", "acbd"), ("tag", "cabd")),
    ],
)
def test_rows_are_sorted_by_numbers_those_without_last(by: str, order: str, sweep: Path, command: Command) -> None:
    listed = rows(command("ls", "--sort", by).out)[1:]
    assert [row[0] for row in listed] == [f"runs/{name}" for name in order]
    by_json = json.loads(command("ls", "--sort", by, "--json").out)
    assert [run["run_dir"] for run in by_json] == [row[0] for row in listed]


def test_an_error_is_a_column_where_there_is_one(sweep: Path, command: Command) -> None:
    heading, *listed = rows(command("ls").out)
    assert heading[-1] == "error" and [row[-1] for row in listed] == ["-", "-", "-", r"OSError: no\tdata (train.py:7)"]
    assert "  OSError: no\\tdata (train.py:7)\n" in command("status", "runs/d").out


def test_a_column_that_no_run_has_is_reported(sweep: Path, command: Command) -> None:
    result = command("ls", "--columns", "widht", "--sort", "val/acc")
    assert (result.code, rows(result.out)[1]) == (0, ["runs/a", "finished", "-"])
    assert result.err == "no run in runs has `val/acc`\nno run in runs has `widht`; did you mean `width`?\n"


# What keeps a run from its beginning, and the error that is listed.
FAILED_STARTS = {
    "setup": ('raise OSError("no\\ndata")', [], r"OSError: no data (tiny.py:"),
    "graph": ("pass", ["accumulate.every=0"], "GraphError: "),
    "import": ("import nowhere", [], "ModuleNotFoundError: No module named 'nowhere' (tiny.py:"),
    "resources": ("return {'training_step': training_step}", [], "GraphError: "),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("place", FAILED_STARTS)
def test_a_run_that_fails_before_it_begins_is_listed(place: str, tiny: Path, command: Command) -> None:
    line, words, error = FAILED_STARTS[place]
    script = tiny.joinpath("tiny.py").read_text()
    broken = script.replace("    model = torch", f"    {line}\n    model = torch")
    (tiny / "tiny.py").write_text(f"{line}\n{script}" if place == "import" else broken)
    run = ["run", "tiny.py", "lr=0.2", "finish.after=1 steps", "--quiet", "--run-dir", "runs/r"]
    assert command(*run, *words).code in (1, 2)
    (status,) = json.loads(command("ls", "--json").out)
    assert status["state"] == "failed" and status["error"].startswith(error) and status["arguments"] == {"lr": 0.2}
    assert rows(command("ls").out)[1][-2:] == ["no checkpoint", shorten(status["error"], 60)]
    assert command("status", "runs/r").out.startswith("runs/r: failed, graph ?, before it began\n")
    sys.modules.pop("tiny", None)
    (tiny / "tiny.py").write_text(script)
    result = command(*run, "--resume", "never")
    assert (result.code, result.err) == (0, "")
    assert rows(command("ls").out)[1][1:3] == ["finished", "step 1, epoch 0.25, batch 1/4"]


def test_a_start_that_fails_leaves_the_status_of_a_run_and_of_another_program(tiny: Path, command: Command) -> None:
    run = ["run", "tiny.py", "--quiet", "--run-dir", "r"]
    (tiny / "tiny.py").write_text("raise ValueError")
    (tiny / "r").mkdir()
    for text in ('{"colour": "red"}', '{"state": "stopped", "position": "step"}'):
        (tiny / "r" / "status.json").write_text(text)
        assert command(*run).code == 1
        assert (tiny / "r" / "status.json").read_text() == text


def test_no_runs(folder: Path, command: Command) -> None:
    result = command("ls", ".")
    assert (result.code, result.out, result.err) == (0, "", "no run in ., nor in the folders below it\n")
    refused = command("ls", "nowhere")
    assert refused.code == 2 and refused.err.startswith("error: there is no folder `nowhere`")
    (folder / "empty").mkdir()
    assert "there is no run in `empty`" in command("status", "empty").err


@pytest.mark.full
def test_the_best_of_each_node_has_a_name_for_every_command(tiny: Path, command: Command) -> None:
    """The losses fall, so the first checkpoint is the best of `worst`, and the last that of `checkpoint`."""
    (tiny / "twice.toml").write_text(
        'format = 1\n[[edit]]\ninsert = "worst"\nuse = "checkpoint"\nat = "decide"\nafter = "checkpoint"\n'
        'every = "1 epochs"\nbest = "loss"\nbest_mode = "max"\nkeep = 1\n'
    )
    graph = ("--overlay", "twice.toml", "checkpoint.best=loss", "checkpoint.keep=1", "log.every=1 epochs")
    assert command("check", "fit", "--overlay", "twice.toml").code == 0
    result = command("run", "tiny.py", *graph, "finish.after=3 epochs", "--run-dir", "r", "--quiet")
    assert result.code == 0, result.err
    first, last = sorted(path.name for path in (tiny / "r" / "checkpoints").iterdir())
    listed = json.loads(command("ls", ".", "--columns", "best,best:worst", "--json").out)
    assert listed[0]["best"] < listed[0]["best:worst"]
    for words in (["status", "r"], ["explain", "r"]):
        assert f"best:worst {'checkpoint ' * (words[0] == 'status')}{first}, loss" in command(*words).out
    assert f"of {first}" in command("export", "r/best:worst", "worst.safetensors").out
    assert f"of {last}" in command("export", "r/best:checkpoint", "best.safetensors").out
    assert command("check", "r/best:worst").code == 0
    again = ("run", "tiny.py", *graph, "finish.after=4 epochs", "--quiet")
    for words in (["--fork", "r/best:worst"], ["--init", "model=r/best:worst"], ["--resume", "r/best:worst"]):
        result = command(*again, *words, "--run-dir", f"of{words[0]}")
        assert result.code == 0, result.err
    assert json.loads((tiny / "of--fork" / "starts.jsonl").read_text())["checkpoint"].endswith(first)
    assert command("replay", "tiny.py", "--run-dir", "r", "--to", "best:worst").code == 0
    result = command("export", "r/best:wrost", "no.safetensors")
    assert result.code == 2 and "no node `wrost` ranks" in result.err and "best:checkpoint, best:worst" in result.err
