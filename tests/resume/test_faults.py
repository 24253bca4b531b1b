"""Disks that refuse, damaged checkpoints, two processes: what was there stays, and the run comes out equal."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphtrain import Outcome, Trainer
from graphtrain.errors import CheckpointError, UsageError
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.run_directory import METRICS_FILE, STATUS_FILE
from tests.command.forked import Started
from tests.forkserver import CONTEXT
from tests.resume.command_runs import Run
from tests.resume.failing_calls import Calls, failing, killed
from tests.resume.full_run import full_graph, full_trainer

KEEP = 3


def trainer_of(run_dir: Path, notify: Callable[[str], None] = lambda line: None, **checkpoint: object) -> Trainer:
    return full_trainer(run_dir, notify=notify, graph=full_graph().set("checkpoint", **{"keep": KEEP, **checkpoint}))


def result_of(trainer: Trainer, run_dir: Path) -> tuple[str, bytes]:
    return trainer.digest(), (run_dir / METRICS_FILE).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """What the run comes out as that nothing happened to."""
    run_dir = tmp_path_factory.mktemp("whole")
    trainer = trainer_of(run_dir)
    assert trainer.run() is Outcome.FINISHED
    return result_of(trainer, run_dir)


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted(one for one in (run_dir / "checkpoints").iterdir() if not one.name.startswith("."))


PART: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def part(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The run as far as the middle of the second epoch, made once."""
    PART.append(tmp_path_factory.mktemp("part"))
    trainer_of(PART[0]).run(until="10 batches")
    yield
    PART.clear()


def part_of_the_run(run_dir: Path) -> list[Path]:
    """A copy of that; the checkpoints that are there."""
    shutil.copytree(PART[0], run_dir, dirs_exist_ok=True)
    return checkpoints(run_dir)


# Calls that fail while a checkpoint is written


def calls_of_a_save(run_dir: Path, mode: str) -> list[str]:
    part_of_the_run(run_dir)
    trainer = trainer_of(run_dir, mode=mode)
    trainer.advance(5)
    calls = Calls()
    with calls.watched():
        trainer.save()
    return calls.made


@pytest.mark.full
def test_what_a_save_asks_of_the_disk(tmp_path: Path) -> None:
    """Else the tests below would have nothing to fail."""
    made = calls_of_a_save(tmp_path, "async")
    assert {"mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir"} <= set(made)
    assert len(checkpoints(tmp_path)) == KEEP


NUMBERS = {"ENOSPC": errno.ENOSPC, "EACCES": errno.EACCES, "EIO": errno.EIO}


def fails_at(run_dir: Path, at: int, number: int, mode: str, whole: tuple[str, bytes]) -> None:
    """Let one call of a save fail: what was there stays, and the next process resumes."""
    before = part_of_the_run(run_dir)
    trainer = trainer_of(run_dir, mode=mode)
    trainer.advance(5)
    calls = Calls(at, failing(number))
    try:
        with calls.watched():
            trainer.save()
    except CheckpointError as error:
        assert os.strerror(number) in error.message, calls.made[-1]
        assert "earlier checkpoints are kept" in error.message
        # All that was there, and perhaps this one, where its folder could not be flushed after it was in place.
        assert checkpoints(run_dir)[: len(before)] == before, calls.made[-1]
    except UsageError as error:  # before anything is saved: the lock cannot be taken
        assert os.strerror(number) in error.message and ".lock" in error.message
    else:
        assert checkpoints(run_dir)[-1] > before[-1], "a failure that was not raised has done no harm"
    for path in checkpoints(run_dir):
        read_checkpoint(path)
    again = trainer_of(run_dir)
    assert again.run() is Outcome.FINISHED
    assert result_of(again, run_dir) == whole, f"call {at}, {calls.made[at - 1]}"
    assert not list((run_dir / "checkpoints").glob(".*")), "nothing is left over"


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("name", NUMBERS)
def test_some_call_of_a_save_fails(name: str, tmp_path: Path, whole: tuple[str, bytes]) -> None:
    """Every fourth call, one third of them for each reason."""
    made = calls_of_a_save(tmp_path / "counted", "async")
    for at in range(1 + 4 * list(NUMBERS).index(name), len(made) + 1, 12):
        fails_at(tmp_path / str(at), at, NUMBERS[name], "async", whole)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("name", NUMBERS)
def test_whichever_call_of_a_save_fails_all_that_is_there_is_sound(
    name: str, mode: str, tmp_path: Path, whole: tuple[str, bytes]
) -> None:
    for at in range(1, len(calls_of_a_save(tmp_path / "counted", mode)) + 1):
        fails_at(tmp_path / str(at), at, NUMBERS[name], mode, whole)


# Processes that are killed at each call of a save, the deletions of retention among them


def _save_and_be_killed(run_dir: str, at: int, mode: str) -> None:
    trainer = trainer_of(Path(run_dir), mode=mode)
    trainer.advance(5)
    with Calls(at, killed).watched():
        trainer.save()


def killed_at(run_dir: Path, at: int, mode: str, whole: tuple[str, bytes]) -> None:
    before = part_of_the_run(run_dir)
    child = CONTEXT.Process(target=_save_and_be_killed, args=(str(run_dir), at, mode))
    child.start()
    child.join(60)
    assert child.exitcode == 9
    now = checkpoints(run_dir)
    for path in now:
        read_checkpoint(path)
    assert now and now[-1] >= before[-1], "the newest one is still there"
    again = trainer_of(run_dir)
    assert again.run() is Outcome.FINISHED
    assert result_of(again, run_dir) == whole
    assert not list((run_dir / "checkpoints").glob(".*")), "nothing is left over"
    assert len(checkpoints(run_dir)) == KEEP


@pytest.mark.full
def test_killed_at_a_deletion_of_retention(tmp_path: Path, whole: tuple[str, bytes]) -> None:
    made = calls_of_a_save(tmp_path / "counted", "async")
    deletions = [number for number, name in enumerate(made, 1) if name in ("rename", "unlink", "rmdir")]
    for at in (deletions[0], deletions[-1]):
        killed_at(tmp_path / str(at), at, "async", whole)


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_killed_at_each_call_of_a_save(
    mode: str, tmp_path: Path, whole: tuple[str, bytes], record_property: Callable[[str, object], None]
) -> None:
    made = calls_of_a_save(tmp_path / "counted", mode)
    for at in range(1, len(made) + 1):
        killed_at(tmp_path / str(at), at, mode, whole)
    record_property("kills", f"{mode}: at each of the {len(made)} calls that a save makes to the disk")


# Checkpoints that are damaged


def flip(path: Path) -> None:
    """One bit, anywhere in any file."""
    chance = random.Random()
    file = chance.choice(sorted(path.iterdir()))
    data = bytearray(file.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def truncate(path: Path) -> None:
    """Cut a file short, anywhere."""
    file = random.choice(sorted(path.iterdir()))
    os.truncate(file, random.randrange(file.stat().st_size))


def half_delete(path: Path) -> None:
    files = sorted(path.iterdir())
    for file in random.sample(files, random.randrange(1, len(files))):
        file.unlink()


def empty(path: Path) -> None:
    """The folder alone is left."""
    for file in path.iterdir():
        file.unlink()


def exchange_files(path: Path) -> None:
    """A file of an earlier checkpoint in the place of this one's: sound by itself."""
    earlier = sorted(one for one in path.parent.iterdir() if not one.name.startswith("."))[-2]
    shutil.copy(earlier / "progress.msgpack", path / "progress.msgpack")


def rubbish(path: Path) -> None:
    """A folder with a checkpoint's name, and something else in it."""
    empty(path)
    (path / "manifest.msgpack").write_bytes(random.randbytes(1000))
    (path / "notes.txt").write_text("mine")


def as_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("no folder")


def of_another_run(path: Path) -> None:
    """A checkpoint that is sound, and as far, but another run's."""
    other = path.parent.parent.parent / "foreign"
    model_of_another_seed = full_trainer(other, graph=full_graph().set("clip", max_norm=0.5))
    model_of_another_seed.run(until="10 batches")
    shutil.rmtree(path)
    shutil.copytree(checkpoints(other)[-1], path)


DAMAGES = [
    flip, truncate, half_delete, empty, exchange_files, rubbish, as_a_file, of_another_run,
]  # fmt: skip


def resumes_from_before(damaged: list[Path], run_dir: Path, whole: tuple[str, bytes]) -> None:
    """The run names what is damaged, resumes from the newest that is not, and ends equal."""
    said: list[str] = []
    trainer = trainer_of(run_dir, said.append)
    assert trainer.run() is Outcome.FINISHED
    for path in damaged:
        assert [line for line in said if "skipped" in line and path.name in line], said
    assert result_of(trainer, run_dir) == whole


@pytest.mark.second(6)
@pytest.mark.full
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_passed_over(
    damage: Callable[[Path], None], tmp_path: Path, whole: tuple[str, bytes]
) -> None:
    newest = part_of_the_run(tmp_path / "run")[-1]
    damage(newest)
    resumes_from_before([newest], tmp_path / "run", whole)


@pytest.mark.full
def test_the_newest_sound_one_is_found_behind_several(tmp_path: Path, whole: tuple[str, bytes]) -> None:
    damaged = part_of_the_run(tmp_path)[-2:]
    for path in damaged:
        flip(path)
    resumes_from_before(damaged, tmp_path, whole)


def test_a_run_all_of_whose_checkpoints_are_damaged_is_not_begun_over(tmp_path: Path) -> None:
    damaged = part_of_the_run(tmp_path)
    for path in damaged:
        truncate(path)
    said: list[str] = []
    with pytest.raises(UsageError, match=f"holds {len(damaged)} checkpoints, none of which can be resumed"):
        trainer_of(tmp_path, said.append).run()
    assert all(any(path.name in line for line in said) for path in damaged)
    assert checkpoints(tmp_path) == damaged


@pytest.mark.full
def test_damaged_ones_do_not_push_the_newest_sound_one_out(tmp_path: Path, whole: tuple[str, bytes]) -> None:
    """Retention counts what is sound."""
    sound, *damaged = part_of_the_run(tmp_path)
    for path in damaged:
        flip(path)
    trainer = trainer_of(tmp_path, keep=2)
    trainer.advance()
    kept, new = checkpoints(tmp_path)  # one was written at once, so that the next process goes on from there
    assert kept == sound
    flip(new)
    resumes_from_before([new], tmp_path, whole)


# A file system of its own, in a name space of its own


def can_mount(folder: Path) -> bool:
    folder.mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=64k none "$1"', "sh", str(folder)],
            capture_output=True,
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


@pytest.fixture
def mounting(tmp_path: Path) -> None:
    if not can_mount(tmp_path / "probe"):
        pytest.skip("file systems cannot be mounted here: `unshare -rm` and `mount` are refused")


FULL_DISK = """
set -u
mount -t tmpfs -o size=2m none run
cp -a first/. run
available() { df --output=avail -k run | tail -1; }
head -c $(( ($(available) - 28) * 1024 )) /dev/zero > run/filler
"$@"; echo "full $?"
ls run/checkpoints
cp -r run/checkpoints kept
rm run/filler
cp -a run/. out
"""


def in_a_name_space(run: Run, script: str) -> tuple[list[str], str]:
    """Part of a run; a script around the command in a name space of its own; and, with room on the disk, the rest.

    What the script wrote, and its output.
    """
    assert run.finish("--until", "10 batches")[0] == 0
    run.directory.rename(run.folder / "first")
    run.directory.mkdir()
    (run.folder / "out").mkdir()
    process = run.start_new(before=["unshare", "-rm", "sh", "-c", script, "sh"])
    out, errors = process.communicate(timeout=300)
    shutil.rmtree(run.directory)
    (run.folder / "out").rename(run.directory)
    code, said = run.finish()
    assert code == 0, said
    return out.splitlines(), errors


@pytest.fixture(scope="module")
def whole_command(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    run = Run(tmp_path_factory.mktemp("whole"), COMMAND)
    assert run.finish()[0] == 0
    return run.result


COMMAND = ("finish.after=3 epochs", "checkpoint.every=3 batches", "checkpoint.keep=2")


@pytest.mark.full
@pytest.mark.usefixtures("mounting")
def test_a_full_disk_stops_the_run_and_keeps_what_is_there(tmp_path: Path, whole_command: tuple[str, bytes]) -> None:
    run = Run(tmp_path, COMMAND)
    told, said = in_a_name_space(run, FULL_DISK)
    assert told[0] == "full 1", said
    assert os.strerror(errno.ENOSPC) in said and "earlier checkpoints are kept" in said
    assert "Traceback" not in said
    kept = sorted((tmp_path / "kept").iterdir())
    assert len([read_checkpoint(path) for path in kept if not path.name.startswith(".")]) == 2
    assert run.result == whole_command
    assert run.unaccounted() == set()


# Two processes


def wait_for_batches(file: Path, count: int, process: Started) -> None:
    while process.poll() is None and (not file.exists() or len(file.read_text().splitlines()) < count):
        time.sleep(0.01)
    assert process.poll() is None


@pytest.mark.sweep
def test_a_second_process_is_refused_and_a_killed_one_leaves_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, (*COMMAND, "workers=2"), {"TRAINED": str(tmp_path / "trained")})
    first = run.start(BATCH_SECONDS="0.5")
    try:
        wait_for_batches(tmp_path / "trained", 4, first)
        code, said = run.finish()
        assert code == 2
        assert f"is being trained by process {first.pid}" in said
    finally:
        first.send_signal(signal.SIGKILL)
    # At once: its loader workers are still there.
    second = run.start()
    first.communicate()
    out, errors = second.communicate(timeout=300)
    assert second.returncode == 0, out + errors


@pytest.mark.full
def test_a_status_that_was_not_flushed_when_the_power_went_is_no_file_of_others(
    tmp_path: Path, whole: tuple[str, bytes]
) -> None:
    trainer_of(tmp_path).run(until="10 batches")
    os.truncate(tmp_path / STATUS_FILE, 0)
    resumed = trainer_of(tmp_path)
    resumed.run()
    assert result_of(resumed, tmp_path) == whole
