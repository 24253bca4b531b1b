"""The run directory of one trainer: what it refuses, what it writes, and what it resumes from."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain.errors import UsageError
from graphtrain.storage import run_files
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.manifest import Manifest, read_manifest
from graphtrain.storage.run_directory import STATUS_FILE, Retention, read_status
from graphtrain.storage.run_files import RunFiles, Written
from graphtrain.storage.state_files import StagedState
from graphtrain.storage.tensor_files import StagingBuffers
from tests.storage.facts import FACTS
from tests.storage.test_manifest import seal

NINE = Retention(9)


class Run:
    """The files of a run, what it says, and its checkpoints."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.said: list[str] = []
        self.files = RunFiles(folder, self.said.append, **options)

    def begin(self) -> None:
        self.files.cut_back_to(None, {})
        self.files.started({"how": "begun"}, {})

    def save(
        self,
        step: int,
        retention: Retention = NINE,
        value: float | None = None,
        **more: Any,
    ) -> Written:
        weights = torch.full((2,), more.pop("weight", 1.0))
        state = StagedState({"resources": {"model": {"w": weights}}}, {}, StagingBuffers(), {"model": ["w"]})
        replaced = more.pop("replaced", None)
        values = {retention.best: value} if retention.best is not None else {}
        facts = self.files.noted(Manifest(**{**FACTS, "step": step, **more}))
        written = self.files.save(state, facts, {"node": retention}, values, replaced)
        self.files.saved(written)
        return written


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- what is refused at once


def test_a_run_directory_is_made_and_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(tmp_path / "a" / "run")
    assert names(tmp_path / "a" / "run") == ["checkpoints"]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as refused:
        Run(tmp_path / "file" / "run")
    assert str(refused.value) == (
        f"the run directory `{tmp_path}/file/run` cannot be written: Not a directory\n"
        "  hint: make it writable, or choose another run directory"
    )
    monkeypatch.chdir(tmp_path / "a")
    relative = Run(Path("run")).files
    monkeypatch.chdir(tmp_path)
    assert (relative.path, relative.folder) == (Path("run"), tmp_path / "a" / "run")


# ---- where it resumes


def test_what_it_resumes_from(run: Run, tmp_path: Path) -> None:
    files = run.files
    path = files.path
    assert files.find("auto") is files.find("never") is None and run.said == []
    (files.folder / ".status.json.71.tmp").touch()
    run.begin()
    files.write_status({"state": "running", "position": "a"})
    assert files.find("auto") is None, "its status alone"
    assert run.said == [f"`{path}` holds no sound checkpoint: the run starts from the beginning"]
    assert not (files.folder / ".status.json.71.tmp").exists()
    first, second = run.save(1).path, run.save(2).path
    assert files.find("auto").path == second and files.find(first.name).path == first  # type: ignore[union-attr]
    with pytest.raises(UsageError) as refused:
        files.find("never")
    assert str(refused.value) == (
        f"`{path}` holds a run already\n  hint: choose another run directory, or resume the run"
    )
    other = Run(tmp_path / "other")
    other.begin()
    theirs = other.save(3).path
    with pytest.raises(UsageError) as refused:
        files.find(theirs)
    assert str(refused.value) == (
        f"`{path}` holds a run already, and `{theirs}` is of another\n  hint: fork into a new directory"
    )
    fresh = Run(tmp_path / "fresh").files
    forked = fresh.find(theirs)
    assert forked is not None and not fresh.owns(forked) and other.files.owns(forked)
    (second / "model.safetensors").unlink()
    assert files.find("auto").path == first  # type: ignore[union-attr]
    (first / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="holds 2 checkpoints, none of which can be resumed"):
        files.find("auto")


def test_checkpoints_of_another_run_and_of_rows_that_were_cut_off_are_passed_over(run: Run) -> None:
    run.begin()
    run.files.row({"step": 1.0}, 1)
    first, second, third = (run.save(step).path for step in (1, 2, 3))
    seal(third, run="another")
    seal(second, metrics_bytes=99)
    assert run.files.find("auto").path == first  # type: ignore[union-attr]
    assert run.said == [
        f"skipped {third}: it is of another run",
        f"skipped {second}: the run was resumed from an earlier checkpoint",
    ]
    seal(third, run="")
    assert run.files.newest().path == third, "of a run whose name is not known"  # type: ignore[union-attr]
    assert Run(run.files.folder.parent / "empty").files.newest() is None


def test_which_is_the_newest(run: Run) -> None:
    run.begin()
    one, two = run.save(1).path, run.save(2).path
    checkpoints = [read_checkpoint(path) for path in (one, two)]
    assert [run.files.is_newest(each) for each in checkpoints] == [False, True]
    assert run.files.resumable == two and run.said == []
    three = run.save(3, weight=float("inf")).path
    assert run.files.resumable == two and run.files.latest == (three, read_manifest(three).digest)
    assert run.said == [
        f"{three.name}: `model.w` is not finite; checkpoints with finite weights are kept, whatever `keep` is, and a "
        "resume uses the newest of them"
    ]
    run.save(4, weight=float("nan"))
    assert len(run.said) == 1, "reported once"
    assert [run.files.is_newest(each) for each in checkpoints] == [False, True]
    five = run.save(5).path
    run.save(6, weight=float("nan"))
    assert run.files.resumable == five and len(run.said) == 2
    again = Run(run.files.folder.parent / "other")
    again.begin()
    lost = again.save(1, weight=float("nan")).path
    assert again.files.resumable == lost and again.files.is_newest(read_checkpoint(lost))


def test_a_resume_cuts_metrics_and_ranking_back(run: Run) -> None:
    best = Retention(9, "loss")
    run.begin()
    run.files.row({"step": 1.0}, 1)
    assert not run.files.has_ranked("node")
    first = run.save(1, best, 0.5)
    run.files.row({"step": 2.0}, 2)
    run.save(2, best, 0.25)
    assert run.files.has_ranked("node")
    name = read_manifest(first.path).run
    again = Run(run.files.folder)
    rows = again.files.cut_back_to(read_checkpoint(first.path), {"node": best})
    assert rows == [{"step": 1.0}] and again.files.latest == (first.path, first.manifest.digest)
    assert list(again.files._store.rankings["node"].values) == [first.path.name]
    assert again.save(3).manifest.run == name
    other = Run(run.files.folder.parent / "fork")
    assert other.files.cut_back_to(read_checkpoint(first.path), {"node": best}) == []
    assert other.files.latest == (first.path, first.manifest.digest)
    assert other.save(3).manifest.run not in ("", name)
    follows = Run(run.files.folder, writes=False, lead=lambda act: name)
    assert follows.files.cut_back_to(read_checkpoint(first.path), {"node": best}) == [{"step": 1.0}]


# ---- what it writes


def test_the_list_of_starts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run.files.folder
    monkeypatch.setattr(run_files.time, "time", lambda: 1234.56789)
    run.files.cut_back_to(None, {})
    run.files.started({"how": float("nan"), "where": folder}, {"source-a.diff": "first"})
    with (folder / "starts.jsonl").open("ab") as file:
        file.write(b'{"cut')
    run.files.started({"how": "again"}, {"source-a.diff": "second", "source-b.diff": "b"})
    first, cut, second = (folder / "starts.jsonl").read_text().splitlines()
    here = {"process": os.getpid(), "host": socket.gethostname(), "started_at_unix_seconds": 1234.568}
    name = run.files.noted(Manifest()).run
    assert json.loads(first) == {"run": name, "how": "nan", "where": str(folder), **here}
    assert cut == '{"cut' and json.loads(second) == {"run": name, "how": "again", **here}
    assert (folder / "source-a.diff").read_text() == "first" and (folder / "source-b.diff").read_text() == "b"
    before = names(folder)
    follower = Run(folder, writes=False).files
    follower.started({"how": "not"}, {"source-c.diff": ""})
    follower.row({"step": 1.0}, 1)
    follower.write_status({"state": "x"})
    assert names(folder) == before and len((folder / "starts.jsonl").read_text().splitlines()) == 3


def test_a_status_names_the_newest_and_the_best(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files.time, "time", lambda: 1234.56789)
    files = run.files
    here = {"process": os.getpid(), "host": socket.gethostname(), "written_at_unix_seconds": 1234.568}
    assert files.last_status() == {}
    files.write_status({"state": "running", "rate": float("inf")})
    expected: dict[str, Any] = {"state": "running", "rate": "inf", "checkpoint": None, "digest": None, "best": None}
    assert files.last_status() == {**expected, **here}
    run.begin()
    written = run.save(1, Retention(2, "loss"), 0.5)
    files.write_status({})
    status = files.last_status()
    assert (status["checkpoint"], status["digest"]) == (written.path.name, written.manifest.digest)
    assert status["best"] == {"checkpoint": written.path.name, "metric": "loss", "value": 0.5}
    monkeypatch.setattr(run_files.os, "getpid", lambda: -1)
    files.write_status({"state": "of a forked process"})
    assert files.last_status() == status


def test_the_status_of_a_run_that_has_not_begun_replaces_none_that_has_and_no_file_of_others(tmp_path: Path) -> None:
    def written(run_dir: Path, state: str) -> str:
        run_files.write_start(run_dir, {"state": state})
        return str(read_status(run_dir)["state"])

    run_dir = tmp_path / "sweep" / "run"
    assert [written(run_dir, "waiting"), written(run_dir, "failed")] == ["waiting", "failed"]
    file = run_dir / STATUS_FILE
    assert read_status(run_dir)["position"] == ""
    file.write_text('{"state": "running", "position": "step"}')
    assert written(run_dir, "failed") == "running"
    file.write_text("notes")
    run_files.write_start(run_dir, {"state": "failed"})
    assert file.read_text() == "notes"


def test_metrics_are_on_the_disk_before_the_checkpoint_that_counts_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.begin()
    run.files.row({"step": 1.0}, 1)
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name), fsync(fd))
    )
    path = run.save(1).path
    assert synced[:1] == ["metrics.jsonl"] and synced[3:4] == ["manifest.msgpack"] and synced[5:] == ["checkpoints"]
    assert {*synced[1:3]} == {"progress.msgpack", "model.safetensors"}
    assert synced[4].startswith(f".{path.name}.") and synced[4].endswith(".tmp")


# ---- which checkpoints stay


def test_a_checkpoint_replaces_the_one_at_the_same_moment(run: Run) -> None:
    run.begin()
    best = Retention(9, "loss")
    first = run.save(1, best, 0.5)
    second = run.save(1, best, replaced=first.path, replaces=1)
    assert names(run.files.checkpoints) == [second.path.name]
    assert second.manifest.ranked == {"loss": 0.5} and second.first_number == 1
    third = run.save(2, best, weight=float("nan"), replaced=second.path, replaces=1)
    assert names(run.files.checkpoints) == [second.path.name, third.path.name], "a finite one is not replaced by it"
    assert third.manifest.replaces == 0 and third.manifest.not_finite == "model.w"
    assert third.first_number == 3
    fourth = run.save(3, best, weight=float("nan"), replaced=third.path, replaces=3)
    assert names(run.files.checkpoints) == [second.path.name, fourth.path.name]


def test_the_newest_and_the_best_stay_and_those_it_can_go_back_to(run: Run) -> None:
    run.begin()
    one = run.save(1, Retention(1, "loss"), 0.1).path
    two = run.save(2, Retention(1, "loss"), 0.2).path
    three = run.save(3, Retention(1, "loss"), 0.3, saved_by={"stage": two.name}).path
    assert names(run.files.checkpoints) == [one.name, two.name, three.name]
    assert [*run.files._store.rankings["node"].values] == [one.name, two.name, three.name]
    four = run.save(4, Retention(1, "loss"), float("nan")).path
    assert names(run.files.checkpoints) == [one.name, four.name]
    assert json.loads((run.files.folder / "best.json").read_text())["checkpoints"] == [
        {"checkpoint": one.name, "value": 0.1}
    ]
    run.save(5, Retention(1))
    assert len(names(run.files.checkpoints)) == 1 and not (run.files.folder / "best.json").exists()
    (run.files.checkpoints / "000001-step-9").mkdir()
    run.save(6, Retention(1), metrics={"other": 0.7})
    assert "000001-step-9" in names(run.files.checkpoints), "a folder of somebody"
    run.save(7, Retention(9, "other", "max"), 0.6)
    assert [*run.files._store.rankings["node"].values.values()] == [0.7, 0.6], "as it was measured then"


def test_the_ranking_is_on_the_disk_before_anything_is_removed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.begin()
    run.save(1, Retention(1, "loss"), 0.2)
    rename = Path.rename
    seen: list[list[str]] = []

    def looking(path: Path, target: Path) -> Any:
        if ".removed" in target.name:
            ranking = json.loads((run.files.folder / "best.json").read_text())
            seen.append([entry["checkpoint"] for entry in ranking["checkpoints"]])
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", looking)
    second = run.save(2, Retention(1, "loss"), 0.1)
    assert seen == [[second.path.name]] and names(run.files.checkpoints) == [second.path.name]


# ---- the lock
