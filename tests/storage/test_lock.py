"""One process at a time trains in a run directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphtrain import UsageError
from graphtrain.storage.run_files import RunLock
from tests.program.small_run import small_trainer

pytest.importorskip("fcntl")

HOLD = """
import os, sys, time
from pathlib import Path
from graphtrain.storage.run_files import RunLock
RunLock(Path(sys.argv[1]), print).acquire()
if sys.argv[2] == "with a worker" and os.fork() == 0:
    time.sleep(60)
print("held", flush=True)
time.sleep(60)
"""


def holder(folder: Path, how: str = "alone") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), how], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.full
def test_a_second_process_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    first = holder(tmp_path)
    try:
        with pytest.raises(UsageError, match=rf"is being trained by process {first.pid} on .+ since \d{{4}}-") as it:
            small_trainer(tmp_path).run()
        assert "choose another run directory" in it.value.hint
        assert not (tmp_path / "status.json").exists(), "nothing was touched"
    finally:
        end(first)


@pytest.mark.full
def test_a_crash_leaves_no_lock_even_while_a_worker_outlives_it(tmp_path: Path) -> None:
    first = holder(tmp_path, "with a worker")
    first.kill()
    first.wait()
    deadline = time.monotonic() + 300  # the worker lets go as soon as it runs at all
    while True:
        try:
            lock = RunLock(tmp_path, print)
            lock.acquire()
            break
        except UsageError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    lock.release()
    end(first)


@pytest.mark.full
def test_a_run_locks_its_directory_while_it_runs_and_not_after(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    found: list[str] = []

    def look(metrics: object, step: int) -> None:
        try:
            small_trainer(tmp_path).run()
        except UsageError as error:
            found.append(error.message)

    trainer._session.recorder.loggers.append(look)
    trainer.run(until="3 batches")
    assert found and f"process {os.getpid()} on " in found[0]
    small_trainer(tmp_path).run(until="4 batches")


def test_a_trainer_that_stood_still_notices_that_the_run_went_on_elsewhere(tmp_path: Path) -> None:
    first = small_trainer(tmp_path)
    first.run(until="3 batches")
    small_trainer(tmp_path).run(until="5 batches")
    with pytest.raises(UsageError, match="was resumed elsewhere"):
        first.run()
    assert first.state == "stopped"


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", without)
    said: list[str] = []
    lock = RunLock(tmp_path, said.append)
    lock.acquire()
    lock.release()
    assert len(said) == 1 and "has no locks (Operation not supported)" in said[0]
