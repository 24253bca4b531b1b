"""Disks that refuse, damaged checkpoints, two processes: what was there stays, and the run is the same (promise 12).

Processes that are killed, at any call of the disk, are in `tests/simulation`.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphtrain import CheckpointError, Outcome, Trainer, UsageError
from tests.simulation.disk import Calls, failing
from tests.world import in_a_process, rows_of, small_fit, small_model, world

KEEP = 3
GRAPH = small_fit(save_every="2 batches").set("checkpoint", keep=KEEP, mode="sync")
Result = tuple[str, list[dict[str, Any]]]


def trainer_of(run_dir: Path, lines: list[str] | None = None, **checkpoint: object) -> Trainer:
    return world(GRAPH.set("checkpoint", **checkpoint), model=small_model, data="list").trainer(run_dir, lines=lines)


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted(path for path in (run_dir / "checkpoints").iterdir() if not path.name.startswith("."))


def finished(run_dir: Path, lines: list[str] | None = None, **checkpoint: object) -> Result:
    trainer = trainer_of(run_dir, lines, **checkpoint)
    assert trainer.run() is Outcome.FINISHED
    assert not list((run_dir / "checkpoints").glob(".*")), "nothing is left over"
    return trainer.digest(), rows_of(run_dir)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The run as far as the second epoch, and what the whole run comes out as that nothing happened to."""
    folder = tmp_path_factory.mktemp("made")
    trainer_of(folder / "part").run(until="7 batches")
    return folder / "part", finished(folder / "whole")


@pytest.fixture
def run_dir(tmp_path: Path, made: tuple[Path, Result]) -> Path:
    """A copy of the part of the run."""
    return Path(shutil.copytree(made[0], tmp_path / "run"))


def expect_sound(path: Path) -> None:
    world(GRAPH, model=small_model, data="list").trainer().advance(0, resume=path)


# ---- calls that fail while a checkpoint is written


def saved_with(run_dir: Path, calls: Calls, mode: str) -> Calls:
    trainer = trainer_of(run_dir, mode=mode)
    trainer.advance(5)
    with calls.watched():
        trainer.save()
    return calls


NUMBERS = {"ENOSPC": errno.ENOSPC, "EACCES": errno.EACCES, "EIO": errno.EIO}


@pytest.mark.full
@pytest.mark.second(1)
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("name", NUMBERS)
def test_some_call_of_a_save_fails(name: str, mode: str, tmp_path: Path, made: tuple[Path, Result]) -> None:
    """What was there stays, and the next process resumes."""
    counted = saved_with(Path(shutil.copytree(made[0], tmp_path / "counted")), Calls(), mode).made
    assert {"mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir"} <= {*counted}
    for at in range(1 + 3 * [*NUMBERS].index(name), len(counted) + 1, 9):
        run_dir = Path(shutil.copytree(made[0], tmp_path / str(at)))
        before, why = checkpoints(run_dir), os.strerror(NUMBERS[name])
        try:
            saved_with(run_dir, Calls(at, failing(NUMBERS[name])), mode)
        except CheckpointError as error:
            assert why in error.message and "earlier checkpoints are kept" in error.message, counted[at - 1]
            # All that was there, and perhaps this one, where its folder could not be flushed after it was in place.
            assert checkpoints(run_dir)[: len(before)] == before, counted[at - 1]
        except UsageError as error:  # before anything is saved: the lock cannot be taken
            assert why in error.message and ".lock" in error.message
        else:
            assert checkpoints(run_dir)[-1] > before[-1], "a failure that was not raised has done no harm"
        for path in checkpoints(run_dir):
            expect_sound(path)
        assert finished(run_dir) == made[1], f"call {at}, {counted[at - 1]}"


# ---- checkpoints that are damaged


def flip(path: Path) -> None:
    """One bit, anywhere in any file."""
    file = random.choice(sorted(path.iterdir()))
    data = bytearray(file.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    file.unlink()  # else what is linked to a file of the checkpoint before would change there too
    file.write_bytes(data)


def truncate(path: Path) -> None:
    file = random.choice(sorted(path.iterdir()))
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[: random.randrange(len(data))])


def half_delete(path: Path) -> None:
    files = sorted(path.iterdir())
    for file in random.sample(files, random.randrange(1, len(files))):
        file.unlink()


def exchange_files(path: Path) -> None:
    """A file of an earlier checkpoint in the place of this one's: sound by itself."""
    shutil.copy(checkpoints(path.parent.parent)[-2] / "state.msgpack", path / "state.msgpack")


def rubbish(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    (path / "manifest.msgpack").write_bytes(random.randbytes(1000))
    (path / "notes.txt").write_text("mine")


def as_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("no folder")


def of_another_run(path: Path) -> None:
    """A checkpoint that is sound, and as far, but another run's."""
    other = path.parent.parent.parent / "foreign"
    world(GRAPH.set("clip", max_norm=0.5), model=small_model, data="list").trainer(other).run(until="7 batches")
    shutil.rmtree(path)
    shutil.copytree(checkpoints(other)[-1], path)


@pytest.mark.first(2)
@pytest.mark.parametrize("damage", [flip, half_delete, of_another_run, truncate, exchange_files, rubbish, as_a_file])
def test_a_damaged_checkpoint_is_named_and_passed_over(
    damage: Callable[[Path], None], run_dir: Path, made: tuple[Path, Result]
) -> None:
    newest, lines = checkpoints(run_dir)[-1], list[str]()
    damage(newest)
    assert finished(run_dir, lines) == made[1]
    assert [line for line in lines if "skipped" in line and newest.name in line]


@pytest.mark.full
def test_the_newest_sound_one_is_found_behind_several_and_not_pushed_out(
    run_dir: Path, made: tuple[Path, Result]
) -> None:
    sound, *damaged = checkpoints(run_dir)
    for path in damaged:
        flip(path)
    lines = list[str]()
    trainer_of(run_dir, lines, keep=2).advance()
    assert all(any("skipped" in line and path.name in line for line in lines) for path in damaged)
    first, *given_up, new = checkpoints(run_dir)  # one was written at once: the next process goes on from there
    assert (first, given_up) == (sound, damaged), "retention counts what is sound"
    flip(new)
    assert finished(run_dir) == made[1]


def test_a_run_all_of_whose_checkpoints_are_damaged_is_not_begun_over(run_dir: Path) -> None:
    damaged, lines = checkpoints(run_dir), list[str]()
    for path in damaged:
        truncate(path)
    with pytest.raises(UsageError, match=f"holds {len(damaged)} checkpoints, none of which can be resumed"):
        trainer_of(run_dir, lines).run()
    assert all(any(path.name in line for line in lines) for path in damaged)
    assert checkpoints(run_dir) == damaged


def test_a_status_that_was_not_flushed_when_the_power_went_is_no_file_of_others(
    run_dir: Path, made: tuple[Path, Result]
) -> None:
    os.truncate(run_dir / "status.json", 0)
    assert finished(run_dir) == made[1]


# ---- two processes


@pytest.mark.full
def test_a_second_process_is_refused_while_the_first_one_trains(tmp_path: Path) -> None:
    said: list[str] = []

    def other() -> str:
        with pytest.raises(UsageError) as refused:
            trainer_of(tmp_path).run()
        return str(refused.value)

    def step(model: Any, batch: Any) -> Any:
        if not said:
            said.append(in_a_process(other))
        return model(batch[0]).square().mean()

    it = world(GRAPH, model=small_model, data="list", training_step=step)
    it.trainer(tmp_path, not_state=["training_step<said>"]).run()
    assert f"is in use by process {os.getpid()}" in said[0]
