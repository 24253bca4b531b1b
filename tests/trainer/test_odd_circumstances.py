"""Data without a batch, a validation of one batch, a directory that cannot be written, a clock that is set back."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from graphtrain import DataError, Graph, Loader, Outcome, Trainer, UsageError
from graphtrain.errors import CheckpointError, SaveFailedError
from graphtrain.storage.run_directory import METRICS_FILE, STARTS_FILE, STATUS_FILE
from tests.resume.failing_calls import Calls

EMPTY = "the data gave no batch: it is empty, or was iterated over before and does not start over"
NO_METRICS = "nothing was recorded as `val/...`: there was no batch to evaluate, or it gave no metrics"


def batches(count: int = 3) -> list[torch.Tensor]:
    return [torch.full((4, 2), 1.0 + number) for number in range(count)]


def trainer_of(
    run_dir: Path | None = None,
    train_data: Any = None,
    val_data: Any = None,
    said: list[str] | None = None,
    graph: Graph | None = None,
    losses: list[float] | None = None,
) -> Trainer:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)

    def training_step(model: Any, batch: Any) -> Any:
        loss = model(batch).square().mean()
        if losses is not None:
            losses.append(loss.item())
        return loss

    return Trainer(
        (graph if graph is not None else Graph.load("fit")).set("finish", after="2 epochs"),
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=(said if said is not None else []).append,
        not_state=["training_step<losses>"],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        train_data=batches() if train_data is None else train_data,
        val_data=val_data,
        training_step=training_step,
    )


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


# Data


WITHOUT_A_BATCH: dict[str, Callable[[], Any]] = {
    "an exhausted generator": lambda: exhausted(batch for batch in batches()),
    "an exhausted stream": lambda: exhausted(DataLoader(OneShot(), batch_size=None)),
    "an empty list": lambda: [],
    "an empty Loader": lambda: Loader([], batch_size=2),
    "an empty DataLoader": lambda: DataLoader([], batch_size=2),  # type: ignore[arg-type]
    "batches that are dropped": lambda: DataLoader(torch.ones(1, 2), batch_size=2, drop_last=True),  # type: ignore[arg-type]
    "an iterable without a batch": lambda: Unsized(0),
}
CANNOT_START_OVER = ("an exhausted generator",)


@pytest.mark.first(3)
@pytest.mark.parametrize("name", WITHOUT_A_BATCH)
def test_training_data_without_a_batch_is_an_error(name: str, tmp_path: Path) -> None:
    for run_dir in (None, tmp_path):
        said: list[str] = []
        trainer = trainer_of(run_dir, WITHOUT_A_BATCH[name](), said=said)
        with pytest.raises(DataError) as error:
            trainer.run()
        if run_dir is not None and name in CANNOT_START_OVER:
            assert "can be iterated over only once" in error.value.message
        else:
            assert "ended without a batch: the data is empty, was exhausted" in error.value.message
            assert EMPTY in said
    assert trainer_of(tmp_path).run() is Outcome.FINISHED, "the same command, once the data is there"


def test_data_that_does_not_start_over_ends_the_run_and_it_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    trainer = trainer_of(tmp_path, DataLoader(OneShot(), batch_size=None), said=said)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == 3
    assert EMPTY.replace("no batch:", "no batch in epoch 2:") in said


@pytest.mark.full
@pytest.mark.parametrize("name", ["an exhausted stream", "an iterable without a batch"])
def test_data_that_is_exhausted_at_a_resume_is_an_error(name: str, tmp_path: Path) -> None:
    """Inside an epoch: its batches are drawn again, and cannot be."""
    data = DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
    trainer_of(tmp_path, data).run(until="2 batches")
    with pytest.raises(DataError, match=r"the data ended after 0 batches, it gave [123] before") as error:
        trainer_of(tmp_path, WITHOUT_A_BATCH[name]()).run()
    assert "`setup` must not draw batches from it, unless `__iter__` starts over" in error.value.hint
    whole, resumed = trainer_of(tmp_path / "whole", data), trainer_of(tmp_path, data)
    assert whole.run() is resumed.run() is Outcome.FINISHED
    assert resumed.digest() == whole.digest()


@pytest.mark.first(2)
@pytest.mark.parametrize("name", [name for name in WITHOUT_A_BATCH if name != "an exhausted generator"])
def test_validation_data_without_a_batch_changes_nothing_and_is_reported_once(name: str, tmp_path: Path) -> None:
    reference = trainer_of(tmp_path / "reference")
    reference.run()
    said: list[str] = []
    trainer = trainer_of(tmp_path / "run", val_data=WITHOUT_A_BATCH[name](), said=said)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.metrics == reference.metrics
    assert torch.equal(trainer.resources["model"].weight, reference.resources["model"].weight)
    assert trainer.resources["model"].training
    assert trainer.progress["validate"]["runs"] == 2
    assert said.count(EMPTY) == said.count(NO_METRICS) == 1


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("interval", [29, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("data", [[torch.ones(4, 2)], Unsized(1), Unsized(0)])
def test_a_validation_of_at_most_one_batch_is_exact_after_any_cut(data: Any, interval: int, tmp_path: Path) -> None:
    losses: list[float] = []
    graph = Graph.load("fit").set("validate", every="2 batches")
    whole = trainer_of(tmp_path / "whole", val_data=data, losses=losses, graph=graph)
    whole.run()
    count = sum("val/loss" in row for row in whole.metrics)
    assert count == (0 if isinstance(data, Unsized) and not list(data) else 3)
    for cut in itertools.count(1, interval):
        first = trainer_of(tmp_path / str(cut), val_data=data, graph=graph)
        first.advance(cut)
        if first.position == "end":
            break
        first.save()
        second = trainer_of(tmp_path / str(cut), val_data=data, graph=graph)
        second.run()
        assert second.digest() == whole.digest(), first.position
        assert (tmp_path / str(cut) / METRICS_FILE).read_bytes() == (tmp_path / "whole" / METRICS_FILE).read_bytes()


def test_a_generator_to_validate_on_is_named_where_it_is_read(tmp_path: Path) -> None:
    """Without a run directory the first validation reads it to its end, and the second finds nothing."""
    said: list[str] = []
    trainer = trainer_of(None, val_data=(batch for batch in batches(1)), said=said)
    trainer.run()
    assert sum("val/loss" in row for row in trainer.metrics) == 1
    assert NO_METRICS in said
    with pytest.raises(DataError, match="only once") as error:
        trainer_of(tmp_path, val_data=(batch for batch in batches(1))).run()
    assert "`validate`" in error.value.__notes__[0]


# A directory that cannot be written


class ReadOnly(Calls):
    """A disk that is read-only, or of which a part is: calls that change it fail."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._names = names

    def count(self, name: str) -> None:
        if name in self._names:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


EVERYTHING = ("mkdir", "open", "write", "rename", "replace", "unlink", "rmdir")


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """A run that was stopped, in a directory of its own."""
    trainer_of(tmp_path / "run").run(until="2 batches")
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_read_only_disk_is_an_error_before_anything_trains(tmp_path: Path, part: Path) -> None:
    for run_dir in (tmp_path / "new", part):
        losses: list[float] = []
        with (
            ReadOnly(*EVERYTHING).watched(),
            pytest.raises(UsageError, match=f"`{run_dir}` cannot be written: Read-only file system") as error,
        ):
            trainer_of(run_dir, losses=losses)
        assert error.value.hint == "make it writable, or choose another run directory"
        assert not losses
    assert not (tmp_path / "new" / STATUS_FILE).exists()


@pytest.mark.full
def test_a_disk_that_is_read_only_since_the_trainer_was_made(part: Path) -> None:
    """The lock cannot be taken; nothing is changed, and once it can be written the run comes out equal."""
    before, losses = contents(part), list[float]()
    trainer = trainer_of(part, losses=losses)
    with ReadOnly(*EVERYTHING).watched(), pytest.raises(UsageError, match=r"\.lock` cannot be written: Read-only"):
        trainer.run()
    assert contents(part) == before and not losses
    assert trainer.run() is Outcome.FINISHED
    whole = trainer_of(part.parent / "whole")
    whole.run()
    assert trainer.digest() == whole.digest()


@pytest.mark.full
@pytest.mark.parametrize("file", [METRICS_FILE, STARTS_FILE])
def test_a_file_that_cannot_be_written_at_a_resume_is_named(
    file: str, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph.load("fit").set("log", every="1 steps")
    trainer_of(part, graph=graph).run(until="4 batches")
    older = min(path for path in (part / "checkpoints").iterdir())
    original_open = os.open

    def opened(path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
        if Path(path).name == file and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return original_open(path, flags, *arguments, **keywords)

    trainer = trainer_of(part, graph=graph)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        with pytest.raises(CheckpointError, match=f"cannot write .*{file}: Read-only file system") as error:
            trainer.run(resume=older.name)
    assert error.value.hint == "make it writable, then try again"
    assert trainer.state == "stopped"
    assert trainer.run() is Outcome.FINISHED


def test_a_disk_that_becomes_read_only_stops_the_run_at_its_next_save(part: Path) -> None:
    trainer = trainer_of(part)
    trainer.advance(3)
    before = contents(part / "checkpoints")
    with ReadOnly("mkdir").watched(), pytest.raises(SaveFailedError, match="Read-only file system; earlier checkpoint"):
        trainer.run()
    assert contents(part / "checkpoints") == before
    assert trainer.run() is Outcome.FINISHED


def test_a_run_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("notes")
    with pytest.raises(UsageError, match=r"`.*/r` cannot be written: "):
        trainer_of(tmp_path / "r")
    assert (tmp_path / "r").read_text() == "notes"
