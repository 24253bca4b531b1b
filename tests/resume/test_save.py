"""Saving beside the run: what is saved is what was there, failures are heard of, nothing is left half done."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import CheckpointError, Graph, Outcome, Trainer
from graphtrain.errors import SaveFailedError
from graphtrain.printable import Notices
from graphtrain.storage import checkpoint as writing
from graphtrain.storage.background import Background
from graphtrain.storage.checkpoint import read_checkpoint, read_manifest
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.run_directory import METRICS_FILE, read_status
from tests.program.small_run import small_graph, small_trainer

SECONDS = 300.0


class Disk:
    """A disk that blocks until it is released, or that refuses."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.reached = threading.Event()
        self.refuses = 0
        self._write = writing.write_file

    def write(self, path: Path, data: Any) -> None:
        self.reached.set()
        assert self.free.wait(SECONDS), "nobody released the disk"
        if self.refuses:
            self.refuses -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write(path, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(writing, "write_file", disk.write)
    yield disk
    disk.free.set()


def names(run_dir: Path) -> list[str]:
    return sorted(one.name for one in (run_dir / "checkpoints").iterdir() if not one.name.startswith("."))


def saving(every: str = "3 batches", **parameters: Any) -> Graph:
    return small_graph().set("checkpoint", every=every, **parameters)


def on_batch(trainer: Trainer, number: int, act: Callable[[], None]) -> None:
    """Do something when a batch is trained on, the first having the number 1."""
    step = trainer.resources["training_step"]

    def watched(model: Any, batch: Any) -> Any:
        if model.training and trainer.progress["next_batch"]["batches"] == number:
            act()
        return step(model, batch)

    # What a test remembers is no state of the run.
    trainer._session._not_state = ("training_step<act>", "training_step<step>")
    trainer.rewire(trainer.graph, training_step=watched)


def test_training_continues_while_a_checkpoint_is_written(tmp_path: Path, disk: Disk) -> None:
    trainer = small_trainer(tmp_path, graph=saving())
    trained: list[int] = []

    def let_go() -> None:
        assert disk.reached.wait(SECONDS) and names(tmp_path) == []
        assert read_status(tmp_path)["checkpoint"] is None, "it is no checkpoint before it is on the disk"
        trained.append(trainer.progress["next_batch"]["batches"])
        disk.free.set()

    on_batch(trainer, 5, let_go)
    disk.free.clear()
    trainer.run()
    assert trained == [5]
    assert names(tmp_path)[0] == "000001-step-1", "that of the third batch, after one step"


@pytest.mark.full
def test_what_is_saved_is_what_was_there_although_training_went_on(tmp_path: Path, disk: Disk) -> None:
    whole = small_trainer(tmp_path / "sync", graph=saving(mode="sync"))
    whole.run()
    beside = small_trainer(tmp_path / "async", graph=saving())
    on_batch(beside, 6, disk.free.set)
    disk.free.clear()
    beside.run()
    assert names(tmp_path / "async") == names(tmp_path / "sync")
    for name in names(tmp_path / "sync"):
        one, other = (read_checkpoint(tmp_path / folder / "checkpoints" / name) for folder in ("sync", "async"))
        assert one.manifest.digest == other.manifest.digest
        assert one.manifest.metrics_bytes == other.manifest.metrics_bytes
        assert torch.equal(
            one.sections["resources"]["model"]["0.weight"], other.sections["resources"]["model"]["0.weight"]
        )


@pytest.mark.full
def test_a_second_save_waits_for_the_first(tmp_path: Path, disk: Disk) -> None:
    trainer = small_trainer(tmp_path, graph=saving("1 batches"))
    disk.free.clear()

    def let_go() -> None:
        disk.reached.wait(SECONDS)
        while trainer.progress["next_batch"]["batches"] < 2:
            time.sleep(0.01)
        time.sleep(1)
        disk.free.set()

    threading.Thread(target=let_go).start()
    trainer.run(until="3 batches")
    assert trainer.seconds["save"] > 0.2
    assert [int(name[:6]) for name in names(tmp_path)] == [1, 2, 4], "three, the last in the place of which the stop is"


@pytest.mark.full
def test_a_failure_is_raised_at_the_next_transition_and_the_run_can_be_resumed(tmp_path: Path, disk: Disk) -> None:
    reference = small_trainer(tmp_path / "whole", graph=saving())
    reference.run()
    trainer = small_trainer(tmp_path / "r", graph=saving())
    refused: list[int] = []

    def refuse() -> None:
        while not names(tmp_path / "r"):
            time.sleep(0.01)
        refused.append(trainer.progress["next_batch"]["batches"])
        disk.refuses = 1

    def wait_for_it() -> None:
        while not trainer._run.writer._writing.is_over:  # type: ignore[union-attr]
            time.sleep(0.01)

    on_batch(trainer, 7, wait_for_it)
    on_batch(trainer, 5, refuse)
    with pytest.raises(
        SaveFailedError, match=r"cannot write the checkpoint .*: No space left on device; earlier"
    ) as it:
        trainer.run()
    assert "checkpoint.if_failed" in it.value.hint
    assert refused and 6 <= trainer.progress["next_batch"]["batches"] < 9, (
        "at the next transition, not at the next save"
    )
    assert names(tmp_path / "r") == ["000001-step-1"]
    assert trainer.state == read_status(tmp_path / "r")["state"] == "stopped"
    assert read_status(tmp_path / "r")["checkpoint"] == "000001-step-1"
    assert trainer.run() is Outcome.FINISHED
    assert trainer.digest() == reference.digest()
    assert (tmp_path / "r" / METRICS_FILE).read_text() == (tmp_path / "whole" / METRICS_FILE).read_text()


def test_a_run_may_continue_without_its_checkpoint(tmp_path: Path, disk: Disk) -> None:
    said: list[str] = []
    trainer = small_trainer(tmp_path, graph=saving(if_failed="continue"))
    trainer._run.writer._notices = Notices(said.append)
    disk.refuses = 1
    assert trainer.run() is Outcome.FINISHED
    assert len(said) == 1 and said[0].endswith("earlier checkpoints are kept, and the run continues")
    assert read_status(tmp_path)["state"] == "finished" and names(tmp_path)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_save_that_is_asked_for_raises_in_any_case(mode: str, tmp_path: Path, disk: Disk) -> None:
    trainer = small_trainer(tmp_path, graph=saving(if_failed="continue", mode=mode))
    trainer.advance(3)
    disk.refuses = 1
    with pytest.raises(SaveFailedError):
        trainer.save()
    path = trainer.save()
    assert path is not None and read_checkpoint(path).manifest.digest == trainer.digest()


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("stop", ["signal", "until", "before", "end"])
def test_a_stop_that_was_not_saved_is_an_error_in_any_case(stop: str, mode: str, tmp_path: Path, disk: Disk) -> None:
    trainer = small_trainer(tmp_path, graph=saving("never", if_failed="continue", mode=mode))
    if stop == "signal":
        on_batch(trainer, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    disk.refuses = 1
    with pytest.raises(SaveFailedError, match="No space left on device") as error:
        trainer.run(until="4 batches" if stop == "until" else None, before="step" if stop == "before" else None)
    assert "if_failed" not in error.value.hint, "it is set already"
    assert trainer.state == read_status(tmp_path)["state"] == "stopped" and not names(tmp_path)
    assert trainer.run() is Outcome.FINISHED


@pytest.mark.full
@pytest.mark.parametrize("ending", ["until", "failure", "transitions"])
def test_every_stop_waits_for_the_save_under_way(ending: str, tmp_path: Path, disk: Disk) -> None:
    trainer = small_trainer(tmp_path, graph=saving())

    def let_go_soon() -> None:
        threading.Timer(0.3, disk.free.set).start()
        if ending == "failure":
            raise RuntimeError("the user's own")

    on_batch(trainer, 4, let_go_soon)
    disk.free.clear()
    if ending == "until":
        trainer.run(until="4 batches")
    elif ending == "failure":
        with pytest.raises(RuntimeError, match="the user's own"):
            trainer.run()
        assert read_status(tmp_path)["state"] == "failed"
    else:
        while trainer.progress["next_batch"]["batches"] < 4 or trainer.position != "accumulate":
            if trainer.progress["next_batch"]["batches"] == 3:
                threading.Timer(0.3, disk.free.set).start()
            trainer.advance()
    assert names(tmp_path)[0] == "000001-step-1"
    assert read_status(tmp_path)["checkpoint"] == names(tmp_path)[-1]


def test_a_failure_of_the_run_and_of_its_save_are_both_reported(tmp_path: Path, disk: Disk) -> None:
    trainer = small_trainer(tmp_path, graph=saving())

    def fail() -> None:
        disk.refuses = 1
        disk.free.set()
        raise RuntimeError("the user's own")

    on_batch(trainer, 4, fail)
    disk.free.clear()
    with pytest.raises(RuntimeError, match="the user's own") as it:
        trainer.run()
    assert any("a checkpoint could not be written either" in note for note in it.value.__notes__)


class Odd:
    """A resource whose state cannot be encoded."""

    def state_dict(self) -> dict[str, Any]:
        return {"inside": [1, {"here": object()}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


def test_what_cannot_be_saved_is_an_error_before_anything_trains(tmp_path: Path) -> None:
    losses: list[float] = []
    trainer = small_trainer(tmp_path, losses=losses)
    resources = dict(trainer.resources)
    with pytest.raises(UnsaveableError, match=r"teacher\['inside'\]\[1\]\['here'\] cannot be saved"):
        Trainer(small_graph(), run_dir=tmp_path, notify=lambda line: None, teacher=Odd(), **resources).run()
    assert not losses
    without = Trainer(small_graph(), notify=lambda line: None, teacher=Odd(), **resources)
    without.run(until="1 batches")
    assert losses, "without a run directory nothing is saved"


@pytest.mark.full
def test_the_best_checkpoint_stays(tmp_path: Path) -> None:
    graph = saving("0.5 epochs", keep=1, best="val/loss").set("finish", after="6 epochs")
    trainer = small_trainer(tmp_path, graph=graph)
    trainer.run()
    values = [row["val/loss"] for row in trainer.metrics if "val/loss" in row]
    kept = [read_manifest(tmp_path / "checkpoints" / name).metrics.get("val/loss") for name in names(tmp_path)]
    assert len(kept) in (1, 2) and kept[0] == min(values)
    highest = small_trainer(tmp_path / "max", graph=graph.set("checkpoint", best_mode="max", keep_best=2))
    highest.run()
    kept = [read_manifest(tmp_path / "max" / "checkpoints" / name).metrics for name in names(tmp_path / "max")]
    assert set(sorted(values)[-2:]) <= {one.get("val/loss") for one in kept}


@pytest.mark.full
def test_a_metric_counts_only_where_it_was_measured(tmp_path: Path) -> None:
    """Between two validations the latest value is not that of the weights that are saved."""
    trainer = small_trainer(tmp_path, graph=saving("1 batches", keep=100))
    trainer.run()
    for name in names(tmp_path):
        manifest = read_manifest(tmp_path / "checkpoints" / name)
        rows = [row for row in trainer.metrics if row["step"] == manifest.step and "val/loss" in row]
        if "val/loss" in manifest.metrics:
            assert manifest.metrics["val/loss"] in [row["val/loss"] for row in rows]
    saved = [read_manifest(tmp_path / "checkpoints" / name).metrics for name in names(tmp_path)]
    assert any("val/loss" not in one for one in saved) and any("val/loss" in one for one in saved)


@pytest.mark.full
def test_a_full_disk_does_not_lose_rows_of_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the disk did not take are written when there is room again."""
    reference = small_trainer(tmp_path / "whole", graph=saving())
    reference.run()
    original, refusing = os.write, [False]

    def write(descriptor: int, data: bytes) -> int:
        if refusing[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    said: list[str] = []
    trainer = small_trainer(tmp_path / "r", graph=saving(if_failed="continue"))
    trainer._run.writer._notices = Notices(said.append)
    on_batch(trainer, 2, lambda: refusing.__setitem__(0, True))
    on_batch(trainer, 5, lambda: refusing.__setitem__(0, False))
    trainer.run()
    assert len(said) == 1 and f"cannot write {tmp_path / 'r' / METRICS_FILE}: No space left on device" in said[0]
    assert (tmp_path / "r" / METRICS_FILE).read_text() == (tmp_path / "whole" / METRICS_FILE).read_text()
    with pytest.raises(CheckpointError):
        refusing[0] = True
        small_trainer(tmp_path / "s", graph=saving()).run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_during_the_last_write_costs_no_checkpoint(number: signal.Signals, tmp_path: Path, disk: Disk) -> None:
    trainer = small_trainer(tmp_path, graph=saving("never"))

    def interrupt() -> None:
        disk.reached.wait(SECONDS)
        os.kill(os.getpid(), number)
        time.sleep(0.2)
        disk.free.set()

    disk.free.clear()
    threading.Thread(target=interrupt).start()
    assert trainer.run() is Outcome.FINISHED
    assert len(names(tmp_path)) == 1 and read_status(tmp_path)["state"] == "finished"


@pytest.mark.full
def test_an_interruption_gives_the_save_up_and_another_trainer_resumes(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = small_trainer(tmp_path / "whole", graph=saving())
    whole.run()
    trainer = small_trainer(tmp_path / "r", graph=saving())

    def interrupt() -> None:
        assert disk.reached.wait(SECONDS)
        raise KeyboardInterrupt

    on_batch(trainer, 4, interrupt)
    disk.free.clear()
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    threading.Timer(0.3, disk.free.set).start()
    again = small_trainer(tmp_path / "r", graph=saving())
    again.run()
    assert again.digest() == whole.digest()
    assert names(tmp_path / "r") == names(tmp_path / "whole"), "nothing came of the save that was given up"
    assert not list((tmp_path / "r" / "checkpoints").glob(".*"))


def test_a_wait_that_is_interrupted_can_be_waited_for_again() -> None:
    free = threading.Event()
    job = Background(lambda: free.wait(SECONDS))

    def interrupt() -> None:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        job.result()
    assert not job.is_over
    free.set()
    assert job.result() is True


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_whatever_fails_beside_the_run_is_a_save_that_failed(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: Any) -> None:
        raise error

    monkeypatch.setattr(writing, "write_file", fail)
    trainer = small_trainer(tmp_path, graph=saving())
    with pytest.raises(SaveFailedError, match="cannot write the checkpoint"):
        trainer.run()
    monkeypatch.undo()
    assert not list((tmp_path / "checkpoints").iterdir())
    assert trainer.run() is Outcome.FINISHED


def test_a_run_directory_stays_where_it_was_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = small_trainer("r", graph=saving())
    (tmp_path / "elsewhere").mkdir()
    on_batch(trainer, 2, lambda: os.chdir(tmp_path / "elsewhere"))
    trainer.run()
    assert read_status(tmp_path / "r")["state"] == "finished" and not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.full
def test_the_best_is_known_after_a_resume(tmp_path: Path) -> None:
    graph = saving("0.5 epochs", keep=1, best="val/loss").set("finish", after="2 epochs")
    small_trainer(tmp_path, graph=graph).run()
    best = read_status(tmp_path)["best"]
    assert best["metric"] == "val/loss"
    small_trainer(tmp_path, graph=graph).run()
    assert read_status(tmp_path)["best"] == best


def test_a_resource_whose_name_no_file_can_have_is_refused_at_once(tmp_path: Path) -> None:
    resources = dict(small_trainer().resources)
    with pytest.raises(UnsaveableError, match="that is not a valid name for a file"):
        Trainer(
            small_graph(), run_dir=tmp_path, notify=lambda line: None, **{"..": torch.nn.Linear(1, 1)}, **resources
        ).run()
