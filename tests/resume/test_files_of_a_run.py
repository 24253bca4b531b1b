"""Promises 12 and 14: what is in a run directory, which checkpoints stay, by what names they are found, whose it is."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.torch
import torch

from graphtrain import CheckpointError, Graph, Trainer, UsageError, checkpoint_folder
from tests.resume.files import PROGRESS, WEIGHTS, checkpoints, flip, forge, run_of, saving, steps
from tests.world import assert_same, rows_of, said_at_resume

BEST: dict[str, Any] = {"best": "val/error", "best_mode": "min"}


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.resources["model"].state_dict().items()}


def saved_weights(path: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(path / WEIGHTS)


def status_of(run_dir: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    return status


# ---- which checkpoints stay: there are two steps in an epoch

STAY: dict[str, tuple[list[float], dict[str, Any], list[int], list[int]]] = {
    "the newest": ([1, 2, 3, 4], {"keep": 2}, [6, 8], []),
    "the best too": ([3, 1, 2, 4], {"keep": 1, **BEST}, [4, 8], [4]),
    "the two best": ([3, 1, 2, 4], {"keep": 1, "keep_best": 2, **BEST}, [4, 6, 8], [4, 6]),
    "the best by the largest": ([3, 4, 2, 1], {"keep": 1, **BEST, "best_mode": "max"}, [4, 8], [4]),
    "the best, which is the newest": ([3, 2, 1], {"keep": 1, **BEST}, [6], [6]),
    "the first of equal ones": ([2, 1, 1, 3], {"keep": 1, **BEST}, [4, 8], [4]),
    "none for a NaN": ([nan, 2, nan, 3], {"keep": 1, **BEST}, [4, 8], [4]),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("name", STAY)
def test_which_checkpoints_stay(name: str, tmp_path: Path) -> None:
    values, settings, stay, best = STAY[name]
    it = saving(dict(enumerate(values)), epochs=len(values), **settings)
    run_of(tmp_path, it)
    assert steps(tmp_path) == stay
    if not best:
        assert status_of(tmp_path)["best"] is None
        return
    is_max = settings["best_mode"] == "max"
    step, *_ = sorted(best, key=lambda step: values[step // 2 - 1], reverse=is_max)
    (path,) = (path for path in checkpoints(tmp_path) if path.name.endswith(f"-step-{step}"))
    value = values[step // 2 - 1]
    assert status_of(tmp_path)["best"] == {"checkpoint": path.name, "metric": "val/error", "value": value}
    assert checkpoint_folder(tmp_path / "best") == path


@pytest.mark.full
def test_what_is_ranked_is_cut_back_with_a_resume(tmp_path: Path) -> None:
    it = saving({0: 2.0, 1: 1.0, 2: 3.0}, **BEST)
    run_of(tmp_path, it)
    whole, (first, *later) = rows_of(tmp_path), checkpoints(tmp_path)
    it.trainer(tmp_path).advance(0, resume=first.name)
    assert status_of(tmp_path)["best"]["value"] == 2.0 and "000001-" in checkpoint_folder(tmp_path / "best").name
    assert rows_of(tmp_path) == whole[: len(rows_of(tmp_path))] and len(rows_of(tmp_path)) < len(whole)
    shutil.rmtree(checkpoints(tmp_path)[-1])  # as if it had been killed before it saved
    assert checkpoint_folder(tmp_path / "best") == checkpoint_folder(tmp_path / "newest") == first
    it.trainer(tmp_path, lines=(lines := list[str]())).advance(0)
    assert [f"skipped {path}: the run was resumed from an earlier checkpoint" for path in later[::-1]] == lines[:2]


def test_a_checkpoint_replaces_the_one_at_the_same_moment(tmp_path: Path) -> None:
    """Unless that has weights that are finite, and the new one has not."""
    trainer = saving(epochs=2).trainer(tmp_path)
    trainer.advance(3)
    paths = [trainer.save()]
    weight = trainer.resources["model"][0].weight
    for number, value in enumerate((2.0, float("inf"), float("nan"), 1.0)):
        weight.data.fill_(value)
        paths.append(trainer.save())
        assert len(checkpoints(tmp_path)) <= 3 and checkpoints(tmp_path)[-1] == paths[-1], number
    assert all(torch.isfinite(saved_weights(path)["0.weight"]).all() for path in checkpoints(tmp_path)[-1:])


def test_weights_that_are_not_finite_are_passed_over(tmp_path: Path) -> None:
    it = saving(epochs=4, keep=1, every="never")
    trainer, lines = it.trainer(tmp_path, lines=(said := list[str]())), list[str]()
    for value in (1.0, float("nan"), float("nan")):
        trainer.run(until=f"{2 * len(checkpoints(tmp_path)) + 2} batches")
        trainer.resources["model"][0].weight.data.fill_(value)
        path = trainer.save()
    assert path is not None
    not_finite = [
        line for line in said if "is not finite" in line and "checkpoints with finite weights are kept" in line
    ]
    assert len(not_finite) == 1, "reported once"
    finite = [path for path in checkpoints(tmp_path) if torch.isfinite(saved_weights(path)["0.weight"]).all()]
    assert finite and path not in finite
    it.trainer(tmp_path, lines=lines).advance(0)
    assert "step 4," in said_at_resume(lines) and finite[-1].name.endswith("step-4")
    assert any(f"skipped {path}: `model.0." in line for line in lines)


# ---- by what names they are found


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose best checkpoint, the first of two, is not its newest."""
    folder = tmp_path_factory.mktemp("ranked")
    run_of(folder / "run", saving(keep=1, **BEST))
    return folder / "run"


def exported(*words: str) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr("sys.argv", ["graphtrain", "export", *words])
        runpy.run_module("graphtrain", run_name="__main__")
    if left.value.code:
        raise UsageError("export: it has failed")


@pytest.mark.full
def test_best_and_newest_name_checkpoints_wherever_one_is_named(ranked: Path, tmp_path: Path) -> None:
    best, newest = checkpoints(ranked)
    for name, path in (("best", best), ("newest", newest), (best.name, best)):
        assert checkpoint_folder(ranked / name) == path
        assert name == best.name or Graph.load(ranked / name) == Graph.load(path)
        exported(str(ranked / name), str(tmp_path / f"{name}.safetensors"))
        assert_same(safetensors.torch.load_file(tmp_path / f"{name}.safetensors"), saved_weights(path))
        copy = shutil.copytree(ranked, tmp_path / f"copy-{name}")
        for run_dir, resume in ((copy, name), (None, ranked / name)):
            trainer = saving(epochs=4).trainer(run_dir)
            trainer.advance(0, resume=resume)
            assert_same(weights_of(trainer), saved_weights(path))
    link = tmp_path / "link"
    link.symlink_to(best)
    assert checkpoint_folder(link) == best
    with pytest.raises(UsageError, match="there is no checkpoint `elsewhere/best`"):
        checkpoint_folder("elsewhere/best")
    copy = shutil.copytree(ranked, tmp_path / "with a folder")
    shutil.copytree(newest, copy / "best")
    assert checkpoint_folder(copy / "best") == copy / "best", "a real folder of that name is what it is"


def test_a_damaged_newest_is_not_named(ranked: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(ranked, tmp_path / "run")
    best, newest = checkpoints(copy)
    flip(newest / WEIGHTS)
    lines = list[str]()
    assert checkpoint_folder(copy / "newest", notify=lines.append) == best
    assert len(lines) == 1 and f"skipped a damaged checkpoint: {newest}: " in lines[0]
    forge(best, graph="{}")
    with pytest.raises(CheckpointError, match="its graph cannot be read"):
        Graph.load(best)


NAMED_WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a name of nothing": (lambda run: saving().trainer(run).run(resume="000009-step-9"), "there is no checkpoint"),
    "a path of nothing": (lambda run: saving().trainer(run).run(resume=run / "other"), "there are: 0000"),
    "nothing to load": (lambda run: saving().trainer().load("none/best"), "there is no checkpoint `none/best`"),
    "no best": (lambda run: saving().trainer(run).load("best"), "was ranked by a metric"),
    "no best to resume": (lambda run: saving().trainer(run).run(resume="best"), "was ranked by a metric"),
    "no best graph": (lambda run: Graph.load(run / "best"), "use `.*/newest`"),
    "no best of a node": (lambda run: checkpoint_folder(run / "best:other"), "was ranked by the node `other`"),
    "no best to export": (lambda run: exported(str(run / "best"), str(run / "x.safetensors")), "it has failed"),
    "no run": (lambda run: Graph.load(run.parent / "nothing"), "nothing"),
    "a model that it has not": (lambda run: saving().trainer(run).load("newest", model="mdel"), "has no model"),
    "a model that there is not": (lambda run: saving().trainer(run).load("newest", mdel="model"), "no model `mdel`"),
    "another model": (
        lambda run: saving().but(model=torch.nn.Linear(3, 3)).trainer().load(run / "newest"), "does not match `model`",
    ),
    "never": (lambda run: saving().trainer(run).run(resume="never"), "holds a run already"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED_WRONG)
def test_what_is_not_there_says_what_is(name: str, ranked: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(ranked, tmp_path / "run")
    for path in checkpoints(run_dir):
        forge(path, ranked_by={})
    act, message = NAMED_WRONG[name]
    with pytest.raises(ValueError, match=message):
        act(run_dir)


def test_the_best_weights_are_loaded_and_trained_further(tmp_path: Path) -> None:
    """Nothing but the weights is of the checkpoint; the next one has them, and takes the place of none."""
    trainer = run_of(tmp_path, saving(**BEST))
    last, before = weights_of(trainer), checkpoints(tmp_path)
    moments = trainer.resources["optimizer"].state_dict()["state"][0]["exp_avg"].clone()
    assert trainer.load("best") == before[0]
    assert_same(weights_of(trainer), saved_weights(before[0]))
    assert not torch.equal(weights_of(trainer)["0.weight"], last["0.weight"])
    assert torch.equal(trainer.resources["optimizer"].state_dict()["state"][0]["exp_avg"], moments)
    assert trainer.progress["next_batch"]["epoch"] == 2
    path = trainer.save()
    assert path is not None and path not in before and {*before} < {*checkpoints(tmp_path)}
    assert_same(saved_weights(path), saved_weights(before[0]))


# ---- whose directory it is


def test_a_run_directory_is_made_and_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write .*: Not a directory"):
        saving().trainer(tmp_path / "file" / "run").run()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    trainer = saving().trainer("a/run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    trainer.run(until="1 batches")
    assert len(checkpoints(tmp_path / "a" / "run")) == 1 and not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.full
def test_a_run_is_not_resumed_as_another(tmp_path: Path) -> None:
    run_of(tmp_path / "one")
    run_of(tmp_path / "two")
    theirs = checkpoints(tmp_path / "two")[0]
    with pytest.raises(UsageError, match=r"holds a run already, and `.*` is of another"):
        saving().trainer(tmp_path / "one").run(resume=theirs)
    saving().trainer(tmp_path / "fork").run(resume=theirs)
    assert min(row["step"] for row in rows_of(tmp_path / "fork")) > 2, "a fork begins without rows"
    for name in ("000099-step-9", "000003-step-"):  # folders of somebody
        (tmp_path / "one" / "checkpoints" / name).mkdir()
    leftover = tmp_path / "one" / "checkpoints" / ".000009-step-9.71.1.graphtrain.tmp"
    leftover.mkdir()
    (tmp_path / "one" / ".status.json.71.1.graphtrain.tmp").touch()
    lines = list[str]()
    saving(epochs=4).trainer(tmp_path / "one", lines=lines).run()
    assert not leftover.exists() and not (tmp_path / "one" / ".status.json.71.1.graphtrain.tmp").exists()
    assert (tmp_path / "one" / "checkpoints" / "000003-step-").exists()


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    saving().trainer(tmp_path).run(until="1 batches")
    shutil.rmtree(tmp_path / "checkpoints")
    lines = list[str]()
    run_of(tmp_path, lines=lines)
    assert f"`{tmp_path}` holds a run without a checkpoint: it starts from the beginning" in lines
    assert [row["step"] for row in rows_of(tmp_path) if "loss" in row] == [*range(1, 7)]


def test_a_trainer_that_stood_still_notices_that_the_run_went_on_elsewhere(tmp_path: Path) -> None:
    first = saving().trainer(tmp_path)
    first.run(until="3 batches")
    saving().trainer(tmp_path).run(until="5 batches")
    with pytest.raises(UsageError, match="another process has resumed the run"):
        first.run()
    assert first.state == "stopped"


@pytest.mark.full
def test_a_directory_is_locked_while_a_run_trains_in_it(tmp_path: Path) -> None:
    found: list[str] = []

    def look(metrics: object, step: int) -> None:
        try:
            saving().trainer(tmp_path).run()
        except UsageError as error:
            found.append(error.message)

    saving().trainer(tmp_path, loggers=[look]).run(until="3 batches")
    assert f"is in use by process {os.getpid()} on {socket.gethostname()} since " in found[0]
    saving().trainer(tmp_path).run(until="4 batches")


HELD = """
import os, sys, time
from tests.resume.files import saving
trainer = saving().trainer(sys.argv[1])
def wait(metrics, step):
    if os.fork() == 0:
        time.sleep(60)
    print("held", flush=True)
    time.sleep(60)
trainer = saving().trainer(sys.argv[1], loggers=[wait])
trainer.run()
"""


@pytest.mark.full
def test_a_crash_leaves_no_lock_even_while_a_child_outlives_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=rf"is in use by process {process.pid} on "):
            saving().trainer(tmp_path).run()
        process.kill()
        process.wait()
        deadline = time.monotonic() + 100
        while True:  # the child lets go as soon as it runs at all
            try:
                run_of(tmp_path)
                break
            except UsageError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", without)
    run_of(tmp_path, lines=(lines := list[str]()))
    assert len([line for line in lines if "has no locks (Operation not supported)" in line]) == 1


# ---- what is written


def test_the_list_of_starts(tmp_path: Path) -> None:
    begun = time.time()
    saving().trainer(tmp_path).run(until="1 batches")
    with (tmp_path / "starts.jsonl").open("ab") as file:
        file.write(b'{"cut')
    saving().trainer(tmp_path).run(until="2 batches")
    starts = [json.loads(line) for line in (tmp_path / "starts.jsonl").read_text().splitlines()]
    assert len(starts) == 2 and starts[0]["run"] == starts[1]["run"] != ""
    for start in starts:
        assert (start["process"], start["host"]) == (os.getpid(), socket.gethostname())
        assert begun - 1 < start["started_at_unix_seconds"] < time.time() + 1


def test_a_status_names_the_newest_checkpoint_and_whose_it_is(tmp_path: Path) -> None:
    trainer = run_of(tmp_path)
    status = status_of(tmp_path)
    assert (status["state"], status["checkpoint"]) == ("finished", checkpoints(tmp_path)[-1].name)
    assert (status["process"], status["host"]) == (os.getpid(), socket.gethostname())
    assert status["digest"] == trainer.digest() and abs(status["written_at_unix_seconds"] - time.time()) < 60


@pytest.mark.parametrize("number", [float, numpy.float32, torch.tensor])
def test_numbers_of_other_libraries_and_those_that_json_has_not_are_written(
    number: Callable[[float], Any], tmp_path: Path
) -> None:
    def step(model: Any, batch: Any) -> dict[str, Any]:
        loss = model(batch[0]).square().mean()
        return {"loss": loss, "half": number(0.5), "none": number(nan), "large": number(float("-inf"))}

    saving().but(training_step=lambda made: step).trainer(tmp_path).run(until="1 batches")
    (row,) = [row for row in rows_of(tmp_path) if "half" in row]
    assert (row["half"], row["none"], row["large"]) == (0.5, "nan", "-inf")


def test_a_row_that_the_disk_refuses_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of(tmp_path / "whole")
    write, refused = os.write, list[bytes]()

    def full(descriptor: int, data: bytes) -> int:
        if b'"loss"' in bytes(data) and not refused:
            refused.append(bytes(data))
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    run_of(tmp_path / "run")
    assert refused and rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")


def test_rows_are_on_the_disk_before_the_checkpoint_that_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = saving(mode="sync").trainer(tmp_path)
    trainer.run(until="1 batches")
    synced, fsync = list[str](), os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), fsync(fd))
    )
    trainer.run(until="2 batches")
    path = checkpoints(tmp_path)[-1]
    order = [synced.index(name) for name in ("metrics.jsonl", WEIGHTS, "manifest.msgpack")]
    assert order == sorted(order) and synced.index(PROGRESS) < order[2]
    (folder,) = [name for name in synced if name.startswith(f".{path.name}.")]
    assert order[2] < synced.index(folder), "its files, then its folder"
    assert synced.index(folder) < len(synced) - 1 - synced[::-1].index("checkpoints"), "then its name"


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_fails_the_save_and_leaves_no_trace(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = saving().trainer(tmp_path)
    trainer.run(until="2 batches")
    trainer.advance(1)
    before = sorted((tmp_path / "checkpoints").iterdir())

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync", full) if call == "fsync" else (Path, "rename", full)))
    with pytest.raises(CheckpointError, match="No space left on device"):
        trainer.save()
    monkeypatch.undo()
    assert sorted((tmp_path / "checkpoints").iterdir()) == before


# ---- predictions, and weights by others


def predicting(file: Path, run_dir: Path | None = None) -> Trainer:
    """Seven samples in batches of two: of several types, or a line for each."""
    torch.manual_seed(0)
    data = [torch.arange(first, min(first + 2, 7)).float()[:, None] for first in range(0, 7, 2)]
    types = (torch.int16, torch.bool, torch.bfloat16, torch.float64, torch.uint8)

    def step(model: Any, batch: torch.Tensor) -> Any:
        return {str(dtype): batch.to(dtype) for dtype in types} if not file.suffix else batch.tolist()

    given: dict[str, Any] = {"predict_data": data, "predict_step": step, "predictions_file": file}
    options: dict[str, Any] = {"seed": 0, "run_dir": run_dir, "display": None, "notify": lambda line: None}
    return Trainer("predict", model=torch.nn.Linear(1, 1), **options, **given)


@pytest.mark.parametrize("suffix", ["", ".jsonl"])
def test_predictions_get_their_name_at_the_end_and_a_run_goes_on_from_before(suffix: str, tmp_path: Path) -> None:
    def content() -> list[bytes]:
        return [part.read_bytes() for part in ([file] if suffix else sorted(file.iterdir()))]

    file = tmp_path / f"p{suffix}"
    for until in ("1 batches", "3 batches", None):
        predicting(file, tmp_path / "run").run(until=until)
        assert file.exists() is (until is None) is not (tmp_path / f"p{suffix}.part").exists()
    if suffix:
        assert file.read_text() == "".join(f"[{number}.0]\n" for number in range(7))
    else:
        parts = [safetensors.torch.load_file(part) for part in sorted(file.iterdir())]
        for name in parts[0]:
            values = torch.cat([part[name] for part in parts])
            assert str(values.dtype) == name
            assert torch.equal(values, torch.arange(7.0)[:, None].to(values.dtype))
    with pytest.raises(UsageError, match="exists; a file is never overwritten"):
        predicting(file).run()
    first = checkpoints(tmp_path / "run")[0]
    before = content()
    predicting(file, tmp_path / "run").run(resume=first.name)
    assert content() == before, "made again, from an earlier sample"


def test_lines_of_predictions_that_are_gone_are_found(tmp_path: Path) -> None:
    predicting(tmp_path / "p.jsonl", tmp_path / "run").run(until="3 batches")
    (tmp_path / "p.jsonl.part").write_text("[0.0]\n")
    with pytest.raises(UsageError, match="is shorter than when the checkpoint was written"):
        predicting(tmp_path / "p.jsonl", tmp_path / "run").run()


@pytest.mark.parametrize(
    ("name", "message"),
    [("p.csv", r"must end in \.jsonl, or be a folder"), ("none/p.jsonl", "no folder"), ("q", "File exists")],
)
def test_where_no_predictions_can_be(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "q.part").touch()
    with pytest.raises((UsageError, CheckpointError), match=message):
        predicting(tmp_path / name).run()
