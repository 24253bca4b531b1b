"""Promise 18: `graphtrain status` and `ls`, which show what `status.json` has, whoever has written it."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.looking.conftest import Command
from tests.looking.running import gone

# A run of the third of ten epochs, everything known.
STATUS: dict[str, Any] = {
    **{"state": "stopped", "graph": "fit", "position": "train_batch", "step": 4812, "epoch": 2 + 117 / 938},
    **{"end": ["10 epochs"], "done": 0.2125, "batch": 117, "epoch_batches": 938, "window": [2, 4]},
    "metrics": {"val/loss": 0.051, "loss": 0.04231, "accuracy": 0.987, "lr": 0.001},
    "rates": {"batches": 812.4, "samples": 25_996.8},
    **{"elapsed_seconds": 41.2, "seconds_left": 133.0, "memory_bytes": int(1.2 * 2**30), "device": "cpu"},
    "seconds": {"data": 8.0, "train": 84.0, "validate": 6.0, "save": 2.0},
}
RUNNING = {"state": "running", "process": os.getpid(), "host": socket.gethostname()}


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still: what was written 61 s ago stays so."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


def write_status(run_dir: Path, **changes: Any) -> None:
    """The status of a run, as its process has left it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    written = {"written_at_unix_seconds": time.time() - 61, **STATUS, **changes}
    (run_dir / "status.json").write_text(json.dumps(written))


def panel_of(command: Command) -> list[str]:
    result = command("status", "r")
    assert (result.code, result.err) == (0, "")
    return [line[2:] for line in result.out.splitlines()[1:] if not line.startswith(("  written", "  newest"))]


def test_all_of_a_run_that_is_running(folder: Path, command: Command) -> None:
    write_status(folder / "r", **RUNNING, checkpoint="000007-step-40", digest="d1935")
    out = command("status", "r").out.splitlines()
    assert out[0] == "r: running, graph fit, next node train_batch"
    assert out[-3:] == [
        "  newest checkpoint 000007-step-40",
        "  digest d1935",
        f"  written 1 min 01 s ago by process {os.getpid()}, which is alive",
    ]
    first, *rest = panel_of(command)[:4]
    assert re.fullmatch(r"epoch 3/10 ━+[╸╺]? * 21 %  batch 117/938 · step 4812 · window 2/4", first), first
    assert rest == [
        "loss 0.04231  accuracy 0.987  lr 0.001  val/loss 0.051",
        "812 batches/s  26.0 k samples/s  41 s elapsed  2 min 13 s left  1.2 GiB on cpu",
        "time: data 8 %  train 84 %  validate 6 %  save 2 %",
    ]


# What is changed of the status, the beginnings or parts of lines, and what is in none.
PANELS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"epoch": 0.0, "batch": 0}, ["epoch 1/10 "], []),
    ({"epoch": 2.5, "batch": 469}, ["epoch 3/10 "], []),
    ({"epoch": 3.0, "batch": 938}, ["epoch 3/10 "], []),
    ({"epoch": 3.0, "batch": 0}, ["epoch 4/10 "], []),
    ({"epoch": 2.0, "batch": 7, "epoch_batches": None}, ["epoch 3/10 "], []),
    ({"epoch": 10.0, "batch": 938}, ["epoch 10/10 "], []),
    ({"epoch": 10.0, "batch": 7, "epoch_batches": None, "state": "finished"}, ["epoch 10/10 "], []),
    ({"epoch": 2.5, "end": ["10 epochs", "5 epochs"]}, ["epoch 3/5 "], []),
    ({"end": ["5000 steps", "2 hours"]}, ["epoch 3 ", "step 4812/5000 · window 2/4 · until 2 hours"], []),
    ({"epoch": None, "clocks": {"fold": 2}, "end": ["5 fold"]}, ["fold 2/5 "], ["epoch"]),
    ({"until": ["500 steps"], "until_done": 0.4}, ["until 500 steps (40 %)"], []),
    (RUNNING, ["window 2/4", "2 min 13 s left"], ["stopped", " in "]),
    ({**RUNNING, "position": "validate/eval_batch"}, ["window 2/4 · in validate"], []),
    (
        {**RUNNING, "position": "validate/x", "evaluation": "val", "evaluation_batch": 3, "evaluation_batches": 9},
        ["batch 3/9 of val"],
        ["in validate"],
    ),
    ({"state": "failed"}, ["failed in train_batch"], [" left"]),
    ({"state": "finished", "position": "end"}, ["finished"], [" left"]),
    ({"done": None, "batch": None, "window": None}, ["epoch 3/10  step 4812"], ["━", "%  step"]),
    ({"done": None}, ["epoch 3/10 ━", " 12 %  batch"], []),
    ({"metrics": {"loss": "nan"}, "seconds": {}}, ["loss nan"], ["time:"]),
    ({"step": "7", "epoch": "nan", "end": "10 epochs", "window": 3, "elapsed_seconds": None}, ["0 s"], ["step"]),
    ({"window": [1]}, ["step 4812"], ["window"]),
    ({"metrics": ["loss"], "rates": {"batches": None}, "seconds": 3}, ["batch 117/938"], ["loss", "batches/s"]),
]


@pytest.mark.parametrize(("changes", "parts", "absent"), PANELS, ids=range(len(PANELS)))
def test_what_is_known_is_shown(
    changes: dict[str, Any], parts: list[str], absent: list[str], folder: Path, command: Command
) -> None:
    write_status(folder / "r", **changes)
    shown = "\n".join(panel_of(command))
    assert all(part in shown for part in parts), shown
    assert not any(part in shown for part in absent), shown


STOPPED = '"state": "stopped", "graph": "fit", "position": "step"'
ODD = {
    "nothing in it": "{}",
    "other types": '{"state": 1, "graph": [], "position": {}, "snapshot": {"step": "x", "metrics": 3, "window": [1]}}',
    "commands to the terminal": r'{"state": "\u001b[2J[red]", "checkpoint": "\n", "host": "\u001b[2J", "digest": "\r"}',
    **{f"loss {number}": f'{{{STOPPED}, "metrics": {{"loss": {number}}}, "elapsed_seconds": {number}}}'
       for number in ('"nan"', '"inf"', "1")},
}  # fmt: skip


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_an_odd_status_is_shown_as_far_as_it_goes(content: str, folder: Path, command: Command) -> None:
    (folder / "runs" / "r").mkdir(parents=True)
    (folder / "runs" / "r" / "status.json").write_text(content)
    for words in (["status", "runs/r"], ["ls", "runs"])[: 1 + (STOPPED in content)]:
        result = command(*words)
        assert (result.code, result.err) == (0, "")
        assert all(line.isprintable() for line in result.out.splitlines()) and len(result.out) < 2000
        plain = command(*words, "--json").out
        json.loads(plain, parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))
        for number in re.findall(r'"loss": ("?\w+"?)', content):
            assert "loss " + number.strip('"') in result.out and f'"loss": {number}' in plain


def test_a_process_that_is_gone(folder: Path, command: Command) -> None:
    process = gone()
    place = {"place": "step 41, epoch 2.50"}
    write_status(folder / "r", **{**RUNNING, "process": process}, **place, checkpoint="000007-step-40", digest="d1935")
    out = command("status", "r").out
    assert out.startswith("r: interrupted, graph fit, next node train_batch\n")
    assert f"by process {process}, which is gone" in out and " left" not in out
    written = json.loads((folder / "r" / "status.json").read_text())
    assert json.loads(command("status", "r", "--json").out) == {**written, "state": "interrupted"}
    for name in ("000007-step-40", "000008-step-45"):  # the second was saved after the status was written
        (folder / "r" / "checkpoints" / name).mkdir(parents=True)
        (folder / "r" / "checkpoints" / name / "manifest.msgpack").touch()
        out, is_older = command("status", "r").out, name != "000007-step-40"
        assert f"  newest checkpoint {name}{', saved after what is shown above' * is_older}\n" in out
        assert ("  digest d1935\n" in out) != is_older
        seen = f"step 41, epoch 2.50{'; then saved 000008-step-45' * is_older}"
        assert f"interrupted, {seen}, 1 min" in command("explain", "r").out
        assert re.search(f"interrupted  {seen}  ", command("ls", ".").out)
    write_status(folder / "r", **{**RUNNING, "host": "another one", "process": process})
    assert command("status", "r").out.startswith("r: running, graph fit"), "who knows"
    write_status(folder / "r", process=process, state="finished")
    assert command("status", "r").out.startswith("r: finished, graph fit\n"), "as it said itself"


# ---- the runs below a folder


@pytest.fixture
def runs(tiny: Path, command: Command) -> Path:
    """A finished run, a stopped one in a folder further down, and one that was killed; strangers among them."""
    assert command("run", "tiny.py", "finish.after=2 epochs", "--run-dir", "runs/first-9", "--quiet").code == 0
    assert command("run", "tiny.py", "--until", "6 steps", "--run-dir", "runs/more/deep/first-10", "--quiet").code == 0
    killed = {**RUNNING, "process": gone(), "metrics": {"loss": 0.25, "val/loss": "nan"}}
    write_status(tiny / "runs" / "first-10", **killed, place="step 40, epoch 2.50, batch 5/10")
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


@pytest.mark.first(1)
@pytest.mark.parametrize("words", [["ls", "runs"], ["ls"]], ids=" ".join)
def test_every_run_has_a_row(words: list[str], runs: Path, command: Command) -> None:
    result = command(*words)
    assert (result.code, result.err) == (0, "")
    heading, broken, first, killed, deep = rows(result.out)
    assert heading == ["run", "state", "place", "last metrics", "age", "resumable"]
    assert broken[:2] == ["runs/broken", "unreadable"]
    assert first[:3] == ["runs/first-9", "finished", "step 8, epoch 2, batch 4/4"]
    assert [metric.split()[0] for metric in first[3].split(", ")] == ["epoch/loss", "loss", "lr"]
    assert first[4:6] == ["0 s ago", "-"]
    assert killed[:3] == ["runs/first-10", "interrupted", "step 40, epoch 2.50, batch 5/10"]
    assert killed[3:] == ["loss 0.25, val/loss nan", "1 min ago", "no checkpoint"]
    assert deep[:3] == ["runs/more/deep/first-10", "stopped", "step 6, epoch 1.50, batch 2/4"]
    assert deep[-1] == "yes"
    finished = json.loads(command("ls", "runs", "--json").out)[1]
    assert finished["arguments"] == {"lr": 0.1, "batches": 4, "name": "tiny"}
    assert finished["parameters"]["finish.after"] == "2 epochs" and finished["parameters"]["accumulate.every"] == 1
    assert finished["error"] == finished["reason"] == ""


@pytest.fixture
def sweep(folder: Path) -> Path:
    """Four runs as their status files have them: one diverged, and one failed."""
    statuses: dict[str, dict[str, Any]] = {
        "a": {
            "arguments": {"lr": 0.01, "width": 64},
            "metrics": {"val/loss": 0.5, "lr": 0.001},
            "best": {"value": 0.4},
            "best:accurate": {"value": 0.9},
        },
        "b": {"arguments": {"lr": 0.001, "width": 128}, "metrics": {"val/loss": 0.25}, "parameters": {"clip.by": 2}},
        "c": {"arguments": {"lr": 1e-05, "tag": "a  b"}, "metrics": {"val/loss": "nan"}, "best": {"value": 2}},
        "d": {"state": "failed", "error": "OSError: no\tdata (train.py:7)", "arguments": {"lr": 0.1, "width": True}},
    }
    for name, status in statuses.items():
        (folder / "runs" / name).mkdir(parents=True)
        whole = {"state": "finished", "position": "end", "written_at_unix_seconds": 1000 + ord(name), **status}
        (folder / "runs" / name / "status.json").write_text(json.dumps(whole))
    return folder


def test_on_a_terminal_a_run_is_a_line(sweep: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write_status(sweep / "runs" / "e", place="step 4812, epoch 2.50, batch 117/938, window 2/4")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for columns in (80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        heading, *listed = command("ls").out.splitlines()
        assert len(listed) == 5 and max(map(len, [heading, *listed])) == columns
        assert listed[-1].startswith("runs/e  stopped   step 48") and "...  1 min ago  " in listed[-1]


def test_columns_are_arguments_metrics_and_parameters(sweep: Path, command: Command) -> None:
    result = command("ls", "--columns", "lr,width, val/loss,clip.by,best,best:accurate,tag")
    assert result.err == "" and result.out == (
        "run     state     lr     width  val/loss  clip.by  best  best:accurate  tag\n"
        "runs/a  finished  0.01   64     0.5       -        0.4   0.9            -\n"
        "runs/b  finished  0.001  128    0.25      2        -     -              -\n"
        "runs/c  finished  1e-05  -      nan       -        2     -              a b\n"
        "runs/d  failed    0.1    true   -         -        -     -              -\n"
    )
    heading, *listed = rows(command("ls").out)
    assert heading[-1] == "error" and [row[-1] for row in listed] == ["-", "-", "-", r"OSError: no\tdata (train.py:7)"]
    assert "  OSError: no\\tdata (train.py:7)\n" in command("status", "runs/d").out
    result = command("ls", "--columns", "widht", "--sort", "val/acc")
    assert (result.code, rows(result.out)[1]) == (0, ["runs/a", "finished", "-"])
    assert result.err == "no run in runs has `val/acc`\nno run in runs has `widht`\n"


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


def test_a_start_that_fails_leaves_the_status_of_a_run(tiny: Path, command: Command) -> None:
    (tiny / "tiny.py").write_text("raise ValueError")
    (tiny / "r").mkdir()
    (tiny / "r" / "starts.jsonl").write_text('{"run": "r"}\n')
    (tiny / "r" / "status.json").write_text(text := '{"state": "stopped", "position": "step"}')
    assert command("run", "tiny.py", "--quiet", "--run-dir", "r").code == 1
    assert (tiny / "r" / "status.json").read_text() == text


def test_no_runs(folder: Path, command: Command) -> None:
    result = command("ls", ".")
    assert (result.code, result.out, result.err) == (0, "", "there is no run in ., or in the folders below it\n")
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
        assert f"best:worst checkpoint {first}, loss" in command(*words).out
    assert f"of {first}" in command("export", "r/best:worst", "worst.safetensors").out
    assert f"of {last}" in command("export", "r/best:checkpoint", "best.safetensors").out
    assert command("check", "r/best:worst").code == 0
    again = ("run", "tiny.py", *graph, "finish.after=4 epochs", "--quiet")
    for words in (["--fork", "r/best:worst"], ["--init", "model=r/best:worst"], ["--resume", "r/best:worst"]):
        result = command(*again, *words, "--run-dir", f"of{words[0]}")
        assert result.code == 0, result.err
    assert json.loads((tiny / "of--fork" / "starts.jsonl").read_text())["checkpoint"].endswith(first)
    for words in (["status", "of--fork"], ["explain", "of--fork"]):
        assert f"started from r/checkpoints/{first}" in command(*words).out, "the run that it was forked from"
    assert command("replay", "tiny.py", "--run-dir", "r", "--to", "best:worst").code == 0
    result = command("export", "r/best:wrost", "no.safetensors")
    assert (
        result.code == 2
        and "was ranked by the node `wrost`" in result.err
        and "best:checkpoint, best:worst" in result.err
    )
