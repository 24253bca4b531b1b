"""Promise 12: data without a batch, failures, disks that cannot be written, and what somebody else has put there.

Nothing of it is lost or changed in silence, and a run that goes on is the one that was never disturbed.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from graphtrain import CheckpointError, DataError, LifeCycleError, Loader, Outcome, Trainer, UsageError, fit
from tests.training.tiny import BATCHES, batches, manifest_of, squared, tiny
from tests.world import assert_exact, said_at_resume, world

EMPTY = "the data gave no batch: it is empty, or was iterated over before and does not start over"
NO_METRICS = "nothing was recorded as `val/...`: there was no batch to evaluate, or it gave no metrics"

# ---- data without a batch


class OneShot(IterableDataset[Any]):
    """Looks as if it could be iterated over again and again, and cannot."""

    def __init__(self) -> None:
        self._left = iter(batches())

    def __iter__(self) -> Iterator[Any]:
        return self._left


class Unsized:
    """Batches without a length."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        yield from batches(self._count)


def exhausted(data: Any) -> Any:
    """What a `setup` leaves of data that it looks at."""
    for _ in data:
        pass
    return data


WITHOUT_A_BATCH: dict[str, Callable[[], Any]] = {
    "an exhausted generator": lambda: exhausted(batch for batch in batches()),
    "an exhausted stream": lambda: exhausted(DataLoader(OneShot(), batch_size=None)),
    "an empty list": list,
    "an empty Loader": lambda: Loader([], batch_size=2),
    "an empty DataLoader": lambda: DataLoader([], batch_size=2),  # type: ignore[arg-type]
    "batches that are dropped": lambda: DataLoader(torch.ones(1, 2), batch_size=2, drop_last=True),  # type: ignore[arg-type]
    "an iterable without a batch": lambda: Unsized(0),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("name", WITHOUT_A_BATCH)
def test_training_data_without_a_batch_is_an_error(name: str, tmp_path: Path) -> None:
    for run_dir in (None, tmp_path):
        said: list[str] = []
        with pytest.raises(DataError) as error:
            tiny(run_dir=run_dir, train_data=WITHOUT_A_BATCH[name](), said=said).run()
        if run_dir is not None and "generator" in name:
            assert "can be iterated over only once" in error.value.message
        else:
            assert "ended without a batch: the data is empty, was exhausted" in error.value.message and EMPTY in said
    assert tiny(run_dir=tmp_path).run() is Outcome.FINISHED, "the same command, once the data is there"


@pytest.mark.parametrize("name", [name for name in WITHOUT_A_BATCH if "generator" not in name])
def test_validation_data_without_a_batch_changes_nothing_and_is_reported_once(name: str) -> None:
    said: list[str] = []
    trainer, whole = tiny(val_data=WITHOUT_A_BATCH[name](), said=said), tiny()
    assert trainer.run() is whole.run() is Outcome.FINISHED
    assert trainer.metrics == whole.metrics
    assert torch.equal(trainer.resources["model"].weight, whole.resources["model"].weight)
    assert trainer.resources["model"].training and trainer.progress["validate"]["runs"] == 2
    assert said.count(EMPTY) == said.count(NO_METRICS) == 1


def test_data_that_does_not_start_over_ends_the_run_and_it_is_said() -> None:
    said: list[str] = []
    trainer = tiny(train_data=DataLoader(OneShot(), batch_size=None), said=said)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == BATCHES
    assert EMPTY.replace("no batch:", "no batch in epoch 2:") in said


@pytest.mark.parametrize("name", ["an exhausted stream", "an iterable without a batch"])
def test_data_that_is_exhausted_at_a_resume_is_an_error(name: str, tmp_path: Path) -> None:
    """Inside an epoch: its batches are drawn again, and cannot be."""
    data = DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
    tiny(run_dir=tmp_path, train_data=data).run(until="2 batches")
    with pytest.raises(DataError, match=r"the data ended after 0 batches, but gave [123] before") as error:
        tiny(run_dir=tmp_path, train_data=WITHOUT_A_BATCH[name]()).run()
    assert "if `setup` draws batches from it, `__iter__` must start over" in error.value.hint
    whole, resumed = tiny(train_data=data), tiny(run_dir=tmp_path, train_data=data)
    assert whole.run() is resumed.run() is Outcome.FINISHED
    assert resumed.digest() == whole.digest()


@pytest.mark.full
@pytest.mark.parametrize("data", [lambda: batches(1), lambda: Unsized(1), lambda: Unsized(0)])
def test_a_validation_of_at_most_one_batch_is_exact_after_any_cut(data: Callable[[], Any], tmp_path: Path) -> None:
    it = world(
        fit(epochs=1, validate_every="2 batches", save_every="never"), data=batches, model=one, training_step=squared
    )
    assert_exact(it.but(val_data=lambda made: data()), tmp_path, at=4)


def one() -> torch.nn.Module:
    return torch.nn.Linear(1, 1)


def test_a_generator_to_validate_on_is_named_where_it_is_read(tmp_path: Path) -> None:
    """Without a run directory the first validation reads it to its end, and the second finds nothing."""
    said: list[str] = []
    trainer = tiny(val_data=(batch for batch in batches(1)), said=said)
    trainer.run()
    assert sum("val/loss" in row for row in trainer.metrics) == 1
    assert NO_METRICS in said
    with pytest.raises(DataError, match="only once") as error:
        tiny(run_dir=tmp_path, val_data=(batch for batch in batches(1))).run()
    assert "`validate`" in error.value.__notes__[0]


# ---- a failure inside a node: a new trainer resumes from the last save point, bit for bit


def failing(run_dir: Path | None, moment: Any, said: list[str] | None = None, *, fails: bool = True) -> Trainer:
    def fail(now: Any) -> None:
        if fails and now == moment:
            raise ValueError("a transient failure")

    def training_step(model: Any, batch: Any, epoch: int, batch_index: int) -> Any:
        fail(epoch * BATCHES + batch_index + 1)
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(model: Any, batch: Any, step: int, batch_index: int) -> Any:
        fail(f"val-{step}-{batch_index}")
        return {"loss": torch.nn.functional.cross_entropy(model(batch[0]), batch[1])}

    graph = fit(epochs=3, accumulate=2, log_every="2 steps", save_every="3 batches")
    it = world(graph, training_step=training_step, validation_step=lambda: validation_step)
    return it.trainer(run_dir, lines=said, not_state=["training_step", "validation_step"])


@pytest.mark.full
@pytest.mark.parametrize(("moment", "repeats"), [(6, 3), (4, 1), ("val-6-1", None)])
def test_a_run_that_failed_once_is_the_run_that_never_did(moment: Any, repeats: int | None, tmp_path: Path) -> None:
    failed = failing(tmp_path, moment)
    with pytest.raises(ValueError, match="a transient failure") as caught:
        failed.run()
    assert failed.state == "failed" and "raised in node " in caught.value.__notes__[0]
    with pytest.raises(LifeCycleError, match="has failed inside a node\n  hint: make a new Trainer"):
        failed.run()
    said: list[str] = []
    trainer, whole = failing(tmp_path, moment, said, fails=False), failing(None, None)
    assert trainer.run() is whole.run() is Outcome.FINISHED
    assert (trainer.digest(), trainer.metrics) == (whole.digest(), whole.metrics)
    assert repeats is None or f"; repeating {repeats} batch" in said_at_resume(said)


# ---- a directory that cannot be written


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """A run that was stopped, in a directory of its own."""
    tiny(ROWS, tmp_path / "run").run(until="2 batches")
    return tmp_path / "run"


ROWS = fit(epochs=2, log_every="1 steps", keep=2).set("checkpoint", every="1 batches", best="loss")


def contents(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]  # which has the time in it
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def read_only(patch: pytest.MonkeyPatch, *names: str) -> None:
    """A disk of which what changes it, or files of these names, cannot be written."""

    def refused(call: Callable[..., Any], is_write: Callable[..., bool]) -> Callable[..., Any]:
        def called(path: Any, *given: Any, **named: Any) -> Any:
            is_named = not names or (isinstance(path, str | os.PathLike) and Path(path).name in names)
            if is_write(*given, **named) and is_named:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return call(path, *given, **named)

        return called

    for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "write"):
        patch.setattr(os, name, refused(getattr(os, name), lambda *given, **named: not names))
    patch.setattr(os, "open", refused(os.open, lambda flags, *given, **named: bool(flags & (os.O_WRONLY | os.O_RDWR))))
    opened = refused(io.open, lambda mode="r", *given, **named: bool({*mode} & {*"wxa+"}))
    patch.setattr(builtins, "open", opened)
    patch.setattr(io, "open", opened)


def test_a_read_only_disk_is_an_error_before_anything_trains(
    tmp_path: Path, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_dir in (tmp_path / "new", part):
        with monkeypatch.context() as patch:
            read_only(patch)
            with pytest.raises(UsageError, match=f"cannot write {run_dir}.*: Read-only file system") as error:
                tiny(run_dir=run_dir).run()
        assert error.value.hint == "make it writable, then try again"
    assert not (tmp_path / "new" / "status.json").exists()


@pytest.mark.parametrize("file", ["metrics.jsonl", "starts.jsonl"])
def test_a_file_that_cannot_be_written_at_a_resume_is_named(
    file: str, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = min((part / "checkpoints").iterdir())
    trainer = tiny(ROWS, part)
    with monkeypatch.context() as patch:
        read_only(patch, file)
        with pytest.raises(CheckpointError, match=f"cannot write .*{file}: Read-only file system") as error:
            trainer.run(resume=older.name)
    assert error.value.hint == "make it writable, then try again"
    assert trainer.state == "stopped" and trainer.run() is Outcome.FINISHED


def test_a_file_in_the_place_of_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("notes")
    with pytest.raises(UsageError, match=r"cannot write .*/r: "):
        tiny(run_dir=tmp_path / "r")
    assert (tmp_path / "r").read_text() == "notes"
    trainer = tiny(ROWS, tmp_path / "run")
    trainer.advance(1)
    (tmp_path / "run" / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write .*metrics.jsonl: Is a directory"):
        trainer.run()


# ---- what somebody else has put there


def test_a_fork_refuses_the_rows_of_another_program(part: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    fork.mkdir()
    (fork / "metrics.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(UsageError, match="was not written by a run"):
        tiny(ROWS, fork).run(resume=str(max((part / "checkpoints").iterdir())))
    assert (fork / "metrics.jsonl").read_text() == '{"loss": 1}\n'


@pytest.mark.parametrize("row", ['{"loss": [1]}', "[1]"])
def test_rows_that_are_none_are_refused(row: str, part: Path) -> None:
    file = part / "metrics.jsonl"
    file.write_text(f"{row}\n{file.read_text()}")
    with pytest.raises(UsageError, match="is not a row that a run has written"):
        tiny(ROWS, part).run()
    assert file.read_text().startswith(row)


def linked(run_dir: Path) -> None:
    """The folder of checkpoints is on another disk."""
    (run_dir.parent / "large disk").mkdir()
    run_dir.mkdir()
    (run_dir / "checkpoints").symlink_to("../large disk")
    tiny(ROWS, run_dir).run(until="2 batches")


def killed(run_dir: Path) -> None:
    """Before its first checkpoint: its rows are its own."""
    tiny(ROWS, run_dir).run(until="2 batches")
    shutil.rmtree(run_dir / "checkpoints")


FOLDERS = [".000009-step-9.tmp", ".editor.tmp", "notes"]
FILES = [".editor.tmp", "status.old.tmp", "best.tmp", ".mine.71.tmp", "notes.txt", "metrics.jsonl.bak"]


def shared(run_dir: Path) -> None:
    """It has files of others, with names like those of temporary files."""
    for name in FOLDERS:
        (run_dir / "checkpoints" / name).mkdir(parents=True)
        (run_dir / "checkpoints" / name / "mine").write_text("theirs\n")
    for name in FILES:
        (run_dir / name).write_text("theirs\n")
    tiny(ROWS, run_dir).run(until="3 batches")


@pytest.mark.first(2)
@pytest.mark.parametrize("prepare", [linked, killed, shared])
def test_the_run_is_the_one_that_had_a_directory_of_its_own(prepare: Callable[[Path], None], tmp_path: Path) -> None:
    whole, run_dir = tiny(ROWS, tmp_path / "whole"), tmp_path / "run"
    whole.run()
    prepare(run_dir)
    trainer = tiny(ROWS, run_dir)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.digest() == whole.digest()
    assert (run_dir / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert tiny(ROWS, run_dir).run() is Outcome.ALREADY_FINISHED
    if prepare is shared:
        checkpoints = {path.name for path in (run_dir / "checkpoints").iterdir()} - {*FOLDERS}
        assert 1 <= len(checkpoints) <= 3, "the newest and the best are kept, whatever else is there"
        paths = [run_dir / "checkpoints" / name / "mine" for name in FOLDERS] + [run_dir / name for name in FILES]
        assert {path.read_text() for path in paths} == {"theirs\n"}


@pytest.mark.parametrize("damage", ["metrics", "checkpoints"])
def test_checkpoints_none_of_which_can_be_used_are_not_begun_over(damage: str, part: Path) -> None:
    kept = sorted((part / "checkpoints").iterdir())
    if damage == "metrics":
        (part / "metrics.jsonl").unlink()
    else:
        for path in kept:
            (path / "state.msgpack").write_bytes(b"")
    with pytest.raises(UsageError, match=r"none of which can be resumed|is shorter than when"):
        tiny(ROWS, part).run()
    assert sorted((part / "checkpoints").iterdir()) == kept


@pytest.mark.parametrize("resume", ["never", "of another run"])
def test_a_directory_that_holds_a_run_is_not_replaced(resume: str, part: Path, tmp_path: Path) -> None:
    before = contents(part)
    if resume != "never":
        tiny(ROWS, tmp_path / "other").run(until="1 batches")
        resume = str(next((tmp_path / "other" / "checkpoints").iterdir()))
    with pytest.raises(UsageError, match="holds a run already"):
        tiny(ROWS, part).run(resume=resume)
    assert contents(part) == before


def test_a_named_checkpoint_is_resumed_from(part: Path) -> None:
    first = min((part / "checkpoints").iterdir()).name
    for number, place in enumerate(("", "checkpoints")):
        run_dir = shutil.copytree(part, part.parent / str(number))
        again = tiny(ROWS, run_dir)
        again.advance(resume=run_dir / place / first if place else first)
        assert again.progress["next_batch"]["batches"] <= 2
    with pytest.raises(UsageError, match="there is no checkpoint `nothing`"):
        tiny(ROWS, part).run(resume="nothing")


@pytest.mark.full
def test_a_discarded_line_of_the_run_is_not_resumed(tmp_path: Path) -> None:
    """Killed between the cut of the metrics and the save at once: what was given up is passed over."""
    rows = ROWS.set("checkpoint", keep=100)
    tiny(rows, tmp_path).run()
    expected = (tmp_path / "metrics.jsonl").read_bytes()
    paths = sorted((tmp_path / "checkpoints").iterdir())
    tiny(rows, tmp_path).advance(resume=paths[2].name)
    assert sorted((tmp_path / "checkpoints").iterdir())[-1] not in paths, "saved at once, so that it is the newest"
    assert tiny(rows, tmp_path).run() is Outcome.FINISHED
    assert (tmp_path / "metrics.jsonl").read_bytes() == expected
    (tmp_path / "metrics.jsonl").write_bytes(expected[: manifest_of(paths[2])["metrics_bytes"]])
    said: list[str] = []
    tiny(rows, tmp_path, said=said).run()
    assert any("the run was resumed from an earlier checkpoint" in line for line in said)
    assert (tmp_path / "metrics.jsonl").read_bytes() == expected
