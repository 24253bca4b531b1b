"""Saving beside the run: what is saved is what was there, failures are heard of, nothing is half done (9, 12)."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain import CheckpointError, GraphtrainError, Outcome, Run, Trainer
from tests.world import cross_entropy, rows_of, small_fit, small_model, world

SECONDS = 300.0
Acts = dict[int, Callable[[], object]]


class Disk:
    """A disk that blocks the flush of a file of a checkpoint until it is released, or that refuses it."""

    def __init__(self) -> None:
        self.free, self.reached = threading.Event(), threading.Event()
        self.free.set()
        self.refuses, self.error = 0, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._flush = os.fsync

    def flush(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if "checkpoints" in path.parts and path.is_file():
            self.reached.set()
            assert self.free.wait(SECONDS), "nobody released the disk"
            if self.refuses:
                self.refuses -= 1
                raise self.error
        self._flush(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.flush)
    yield disk
    disk.free.set()


def trainer_of(
    run_dir: Path | str,
    every: str = "3 batches",
    lines: list[str] | None = None,
    acts: Acts | None = None,
    *,
    epochs: int = 2,
    validate: bool = False,
    **parameters: Any,
) -> Trainer:
    """A small run of five batches an epoch, in steps of two.

    Arguments:
        acts: what is done when a batch is trained on, by its number from 1.
    """
    graph = small_fit(epochs=epochs, **({} if validate else {"validate_every": "never"}))
    graph = graph.set("checkpoint", every=every, **{"keep": 10, **parameters})
    trained, left = [0], dict(acts or {})

    def step(model: Any, batch: Any) -> torch.Tensor:
        trained[0] += model.training
        act = left.pop(trained[0], None)
        if act is not None and model.training:
            act()
        return cross_entropy(model, batch)

    it = world(graph, model=small_model, data="list", scheduler="none", training_step=step)
    return it.trainer(run_dir, lines=lines, not_state=["training_step<trained>", "training_step<left>"])


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir() if not path.name.startswith("."))


def status(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    return found


def result(trainer: Trainer, run_dir: Path) -> tuple[str, Any]:
    return trainer.digest(), rows_of(run_dir)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    run_dir = tmp_path_factory.mktemp("whole")
    trainer = trainer_of(run_dir)
    trainer.run()
    return result(trainer, run_dir)


# ---- beside the run


def test_training_continues_while_a_checkpoint_is_written(tmp_path: Path, disk: Disk) -> None:
    reached: list[int] = []

    def let_go() -> None:
        assert disk.reached.wait(SECONDS) and names(tmp_path) == []
        assert status(tmp_path)["checkpoint"] is None, "it is no checkpoint before it is on the disk"
        reached.append(trainer.read("next_batch.batches"))
        disk.free.set()

    trainer = trainer_of(tmp_path, acts={5: let_go})
    disk.free.clear()
    trainer.run()
    assert reached == [5]
    assert names(tmp_path)[0] == "000001-step-1", "that of the third batch, after one step"


def test_what_is_saved_is_what_was_there_although_training_went_on(tmp_path: Path, disk: Disk) -> None:
    trainer_of(tmp_path / "sync", mode="sync").run()
    disk.free.clear()
    trainer_of(tmp_path / "async", acts={6: disk.free.set}).run()
    assert names(tmp_path / "async") == names(tmp_path / "sync")
    for name in names(tmp_path / "sync"):
        one, other = (
            load_file(tmp_path / how / "checkpoints" / name / "model.safetensors") for how in ("sync", "async")
        )
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    assert Run(tmp_path / "async").checkpoints == Run(tmp_path / "sync").checkpoints


@pytest.mark.full
def test_a_second_save_waits_for_the_first(tmp_path: Path, disk: Disk) -> None:
    trainer, trained = trainer_of(tmp_path, "1 batches"), list[int]()
    disk.free.clear()

    def let_go() -> None:
        disk.reached.wait(SECONDS)
        while trainer.read("next_batch.batches") < 2:
            time.sleep(0.01)
        time.sleep(0.3)
        trained.append(trainer.read("next_batch.batches"))
        disk.free.set()

    threading.Thread(target=let_go).start()
    trainer.run(until="3 batches")
    assert trained == [2], "the third batch waits too"
    assert [int(name[:6]) for name in names(tmp_path)] == [1, 2, 4], "three, the last in the place of which the stop is"


# ---- failures


@pytest.mark.full
def test_a_failure_is_raised_soon_and_the_run_can_be_resumed(
    tmp_path: Path, disk: Disk, whole: tuple[str, Any]
) -> None:
    def end_of_writing() -> None:
        for thread in {*threading.enumerate()} - before:
            thread.join(SECONDS)

    def refuse() -> None:
        end_of_writing()
        disk.refuses = 1

    before = {*threading.enumerate()}
    trainer = trainer_of(tmp_path, acts={5: refuse, 7: end_of_writing})
    with pytest.raises(
        CheckpointError, match=r"cannot write the checkpoint .*: No space left on device; earlier"
    ) as error:
        trainer.run()
    assert "checkpoint.if_failed" in error.value.hint
    assert 6 <= trainer.read("next_batch.batches") <= 7, "at the next transition, not at the next save"
    assert names(tmp_path) == ["000001-step-1"] == [status(tmp_path)["checkpoint"]]
    assert trainer.state == status(tmp_path)["state"] == "stopped"
    assert trainer.run() is Outcome.FINISHED
    assert result(trainer, tmp_path) == whole


def test_a_run_may_continue_without_its_checkpoint(tmp_path: Path, disk: Disk) -> None:
    lines, disk.refuses = list[str](), 1
    assert trainer_of(tmp_path, lines=lines, if_failed="continue").run() is Outcome.FINISHED
    assert len(lines) == 1 and lines[0].endswith("earlier checkpoints are kept, and the run continues")
    assert status(tmp_path)["state"] == "finished" and names(tmp_path)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_save_that_is_asked_for_raises_in_any_case(mode: str, tmp_path: Path, disk: Disk) -> None:
    trainer = trainer_of(tmp_path, if_failed="continue", mode=mode)
    trainer.advance(3)
    disk.refuses = 1
    with pytest.raises(CheckpointError):
        trainer.save()
    again = trainer_of(tmp_path / "again")
    again.advance(0, resume=trainer.save())
    assert again.digest() == trainer.digest()


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("stop", ["signal", "until", "before", "end"])
def test_a_stop_that_was_not_saved_is_an_error_in_any_case(stop: str, mode: str, tmp_path: Path, disk: Disk) -> None:
    acts: Acts = {4: lambda: os.kill(os.getpid(), signal.SIGTERM)} if stop == "signal" else {}
    trainer = trainer_of(tmp_path, "never", acts=acts, if_failed="continue", mode=mode)
    disk.refuses = 1
    with pytest.raises(CheckpointError, match="No space left on device"):
        trainer.run(until="4 batches" if stop == "until" else None, before="step" if stop == "before" else None)
    assert trainer.state == status(tmp_path)["state"] == "stopped" and not names(tmp_path)
    assert trainer.run() is Outcome.FINISHED


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_whatever_fails_beside_the_run_is_a_save_that_failed(error: Any, tmp_path: Path, disk: Disk) -> None:
    disk.refuses, disk.error = 1, error
    trainer = trainer_of(tmp_path)
    with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
        trainer.run()
    assert not [*(tmp_path / "checkpoints").iterdir()]
    assert trainer.run() is Outcome.FINISHED


@pytest.mark.parametrize("ending", ["until", "failure"])
def test_every_stop_waits_for_the_save_under_way(ending: str, tmp_path: Path, disk: Disk) -> None:
    def let_go_soon() -> None:
        threading.Timer(0.1, disk.free.set).start()
        if ending == "failure":
            raise RuntimeError("the user's own")

    trainer = trainer_of(tmp_path, acts={4: let_go_soon})
    disk.free.clear()
    if ending == "until":
        trainer.run(until="4 batches")
    else:
        with pytest.raises(RuntimeError, match="the user's own"):
            trainer.run()
        assert status(tmp_path)["state"] == "failed"
    assert names(tmp_path)[0] == "000001-step-1"
    assert status(tmp_path)["checkpoint"] == names(tmp_path)[-1]


def test_a_failure_of_the_run_and_of_its_save_are_both_reported(tmp_path: Path, disk: Disk) -> None:
    def fail() -> None:
        disk.refuses = 1
        disk.free.set()
        raise RuntimeError("the user's own")

    trainer = trainer_of(tmp_path, acts={4: fail})
    disk.free.clear()
    with pytest.raises(RuntimeError, match="the user's own") as error:
        trainer.run()
    assert any("a checkpoint could not be written either" in note for note in error.value.__notes__)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_during_the_last_write_costs_no_checkpoint(number: signal.Signals, tmp_path: Path, disk: Disk) -> None:
    def interrupt() -> None:
        disk.reached.wait(SECONDS)
        os.kill(os.getpid(), number)
        time.sleep(0.1)
        disk.free.set()

    disk.free.clear()
    threading.Thread(target=interrupt).start()
    assert trainer_of(tmp_path, "never").run() is Outcome.FINISHED
    assert len(names(tmp_path)) == 1 and status(tmp_path)["state"] == "finished"


@pytest.mark.full
def test_an_interruption_gives_the_save_up_and_another_trainer_resumes(
    tmp_path: Path, disk: Disk, whole: tuple[str, Any]
) -> None:
    def interrupt() -> None:
        assert disk.reached.wait(SECONDS)
        raise KeyboardInterrupt

    trainer = trainer_of(tmp_path, acts={4: interrupt})
    disk.free.clear()
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    threading.Timer(0.3, disk.free.set).start()
    again = trainer_of(tmp_path)
    again.run()
    assert result(again, tmp_path) == whole
    assert not [*(tmp_path / "checkpoints").glob(".*")], "nothing came of the save that was given up"


def test_a_full_disk_does_not_lose_rows_of_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[str, Any]
) -> None:
    """Rows that the disk did not take are written when there is room again."""
    original, refusing = os.write, [False]

    def write(descriptor: int, data: bytes) -> int:
        if refusing[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    lines = list[str]()
    acts: Acts = {2: lambda: refusing.__setitem__(0, True), 5: lambda: refusing.__setitem__(0, False)}
    trainer = trainer_of(tmp_path, lines=lines, acts=acts, if_failed="continue")
    trainer.run()
    assert len(lines) == 1 and f"cannot write {tmp_path / 'metrics.jsonl'}: No space left on device" in lines[0]
    assert rows_of(tmp_path) == whole[1]
    refusing[0] = True
    with pytest.raises(CheckpointError):
        trainer_of(tmp_path / "s").run()


# ---- what cannot be saved


class Odd:
    """A resource whose state cannot be encoded."""

    def state_dict(self) -> dict[str, Any]:
        return {"inside": [1, {"here": object()}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("teacher", Odd(), r"teacher\['inside'\]\[1\]\['here'\] cannot be saved"),
        ("..", torch.nn.Linear(1, 1), "its name is not valid for a file"),
    ],
)
def test_what_cannot_be_saved_is_an_error_before_anything_trains(
    name: str, value: Any, message: str, tmp_path: Path
) -> None:
    it, losses = world(small_fit(), data="list"), list[float]()
    with pytest.raises(GraphtrainError, match=message):
        it.trainer(tmp_path, losses=losses, **{name: value}).run()
    assert not losses
    it.trainer(losses=losses, **{name: value}).run(until="1 batches")
    assert losses, "without a run directory nothing is saved"


# ---- the best


@pytest.mark.full
def test_the_best_checkpoint_stays_and_is_known_after_a_resume(tmp_path: Path) -> None:
    """A metric counts only where it was measured: between two validations it is not that of the weights saved."""

    def saved(mode: str, number: int) -> tuple[list[float], list[dict[str, Any]]]:
        best: Any = {"best": "val/loss", "best_mode": mode, "keep_best": number, "keep": 1}
        trainer = trainer_of(tmp_path / mode, "1 batches", validate=True, epochs=2, **best)
        trainer.run()
        assert (
            trainer_of(tmp_path / mode, "1 batches", validate=True, epochs=2, **best).run() is Outcome.ALREADY_FINISHED
        )
        assert status(tmp_path / mode)["best"]["metric"] == "val/loss"
        values = [row["val/loss"] for row in trainer.metrics if "val/loss" in row]
        return values, Run(tmp_path / mode).checkpoints

    values, kept = saved("min", 1)
    assert len(kept) in (1, 2) and kept[0]["metrics"]["val/loss"] == min(values)
    values, kept = saved("max", 2)
    assert {*sorted(values)[-2:]} <= {each["metrics"].get("val/loss") for each in kept}


def test_a_run_directory_stays_where_it_was_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    trainer_of("r", acts={2: lambda: os.chdir(tmp_path / "elsewhere")}).run()
    assert status(tmp_path / "r")["state"] == "finished" and not [*(tmp_path / "elsewhere").iterdir()]
