"""kill -9 at any instant, also inside saves: the same command, started again and again, ends in the same run."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.resume.command_runs import Run

INTERVAL = 3
# No process gets further than this before it is killed, so that there are as many kills as there should be.
MOST_BATCHES = 7
SLOW = {"FLUSH_SECONDS": "0.003", "BATCH_SECONDS": "0.01"}


def trained(file: Path) -> dict[str, list[int]]:
    """The numbers of the batches that every process trained, by its id, in the order of the processes."""
    batches: dict[str, list[int]] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        process, _, number = line.partition(" ")
        batches.setdefault(process, []).append(int(number))
    return batches


def kill_somewhere(run: Run, process: subprocess.Popen[str], side: Path, chance: random.Random) -> str:
    """Kill a process at a random instant; where."""

    def batches() -> int:
        return len(trained(side).get(str(process.pid), []))

    def is_writing() -> bool:
        return any((run.directory / "checkpoints").glob(f".*.{process.pid}.*.tmp"))

    where = chance.choice(["anywhere", "training", "training", "saving", "saving"])
    if where == "anywhere":
        time.sleep(chance.uniform(0, 2.5))
    else:
        wanted = chance.randrange(MOST_BATCHES)
        while process.poll() is None and batches() < wanted:
            time.sleep(0.001)
        while where == "saving" and process.poll() is None and batches() < MOST_BATCHES and not is_writing():
            time.sleep(0.0005)
        time.sleep(chance.uniform(0, 0.06))
    inside = is_writing()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return "inside a save" if inside else "elsewhere"


def killed_again_and_again(folder: Path, kills: int, mode: str, record: Callable[[str, object], None]) -> None:
    """Kill one run so often, finish it, and compare it with one that was never killed."""
    seed = random.randrange(10**9)
    chance = random.Random(seed)
    settings = (f"finish.after={15 * kills} batches", f"checkpoint.every={INTERVAL} batches", f"checkpoint.mode={mode}")
    for name in ("whole", "killed"):
        (folder / name).mkdir()
    whole = Run(folder / "whole", settings)
    assert whole.finish()[0] == 0
    side = folder / "trained"
    run = Run(folder / "killed", settings, {"TRAINED": str(side)})
    places = []
    began = time.monotonic()
    for _ in range(kills):
        process = run.start_new(**SLOW)
        places.append(kill_somewhere(run, process, side, chance))
        assert process.returncode == -signal.SIGKILL, f"ended by itself, with {process.returncode} (seed {seed})"
        run.expect_sound()
    code, said = run.finish()
    assert code == 0, f"{said} (seed {seed})"
    assert run.result == whole.result, f"seed {seed}"
    assert run.unaccounted() == set(), f"seed {seed}"
    processes = list(trained(side).values())
    repeated = [before[-1] - after[0] + 1 for before, after in itertools.pairwise(processes)]
    assert all(one == list(range(one[0], one[-1] + 1)) for one in processes)
    # Beside the interval, what was trained while the checkpoint at its end was being written.
    most = INTERVAL if mode == "sync" else 2 * INTERVAL
    assert min(repeated) >= 0, f"a batch was left out (seed {seed})"
    assert max(repeated) <= most, f"{max(repeated)} batches were trained twice (seed {seed})"
    inside = places.count("inside a save")
    assert inside or kills < 20, "a place that is never met proves nothing"
    record(
        "kills",
        f"{mode}: {kills} kills, {inside} inside a save, at most {max(repeated)} batches trained "
        f"twice, {INTERVAL} between checkpoints, {time.monotonic() - began:.0f} s",
    )


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_many_kills(mode: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    killed_again_and_again(tmp_path, 55, mode, record_property)
