"""Cut a run at its save points, resume from each cut, and compare with the run never cut, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from graphtrain import Trainer
from graphtrain.storage.run_directory import METRICS_FILE, NODES_FILE
from tests.forkserver import CONTEXT
from tests.resume.full_run import full_trainer


@dataclass(frozen=True)
class Course:
    """What a run visited, lost and became."""

    visited: list[str]
    losses: list[float]
    digest: str
    metrics: bytes

    def after(self, cut: Cut) -> Course:
        """What is to come of it after a cut."""
        return Course(self.visited[cut.transitions :], self.losses[cut.batches :], self.digest, self.metrics)


@dataclass(frozen=True)
class Cut:
    """A run directory as a process that ended there would have left it."""

    run_dir: Path
    transitions: int
    batches: int


def course_of(trainer: Trainer, losses: list[float], run_dir: Path) -> Course:
    """Drive a trainer to the end."""
    visited = [trainer.advance()]
    while visited[-1] != "end":
        visited.append(trainer.advance())
    return Course(visited, losses, trainer.digest(), (run_dir / METRICS_FILE).read_bytes())


def run_whole(run_dir: Path, kind: str, workers: int) -> Course:
    """The run never cut, and never saved but where its graph says so."""
    losses: list[float] = []
    return course_of(full_trainer(run_dir, kind=kind, workers=workers, losses=losses), losses, run_dir)


def cuts_of(folder: Path, kind: str, workers: int, chosen: Callable[[int], bool]) -> list[Cut]:
    """Save at the save points of a run, by the number of transitions, and make a cut of each."""
    losses: list[float] = []
    trainer = full_trainer(folder / "saved", kind=kind, workers=workers, losses=losses)
    cuts: list[Cut] = []
    transitions, position = 0, ""
    while position != "end":
        position = trainer.advance()
        transitions += 1
        if not chosen(transitions) or position == "end":
            continue
        path = trainer.save()
        assert path is not None
        run_dir = folder / f"cut-{transitions}"
        (run_dir / "checkpoints").mkdir(parents=True)
        shutil.move(path, run_dir / "checkpoints" / path.name)
        cuts.append(Cut(run_dir, transitions, len(losses)))
    for name in (METRICS_FILE, NODES_FILE):
        rows = (folder / "saved" / name).read_bytes()
        for cut in cuts:
            (cut.run_dir / name).write_bytes(rows)  # rows of the lost time after the cut, to be cut back
    return cuts


def resume_cut(run_dir: Path, kind: str, workers: int) -> Course:
    """Resume a run directory and drive it to the end."""
    losses: list[float] = []
    return course_of(full_trainer(run_dir, kind=kind, workers=workers, losses=losses), losses, run_dir)


def differences(whole: Course, cut: Cut, resumed: Course) -> list[str]:
    """In what a run that was cut is another than the one never cut; empty if in nothing."""
    expected: dict[str, Any] = vars(whole.after(cut))
    where = f"after {cut.transitions} transitions, before {whole.visited[cut.transitions - 1]}"
    return [f"{name} {where}" for name, value in vars(resumed).items() if value != expected[name]]


def sweep(folder: Path, kind: str, workers: int, stride: int = 1, offset: int = 0, then: int | None = None) -> int:
    """Compare every `stride`-th cut, each in a process of its own; how many there were.

    Arguments:
        then: the number of workers of the resumed run. Default: the same.
    """
    whole = run_whole(folder / "whole", kind, workers)
    cuts = cuts_of(folder, kind, workers, lambda transitions: transitions % stride == offset % stride)
    job = partial(resume_cut, kind=kind, workers=workers if then is None else then)
    with ProcessPoolExecutor(2, mp_context=CONTEXT, max_tasks_per_child=1) as pool:
        results = list(pool.map(job, [cut.run_dir for cut in cuts]))
    different = [line for cut, result in zip(cuts, results, strict=True) for line in differences(whole, cut, result)]
    assert not different, "\n".join([f"{kind}, {workers} workers:", *different])
    return len(cuts)
