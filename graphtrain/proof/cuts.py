"""Cuts a run at many places, and compares the end of each resume with that of the run.

The run is trained in one process, which saves and copies its directory at each cut. Each copy is resumed in a separate
process, as after a kill, and the results on disk are compared.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, final

from graphtrain.errors import UsageError
from graphtrain.kind.trigger import Trigger
from graphtrain.outcome import Outcome
from graphtrain.plain import is_equal
from graphtrain.printable import shorten
from graphtrain.program import run_state
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Transition
from graphtrain.program.requests import SavePolicy
from graphtrain.program.run_state import OF_TIMED_ROWS
from graphtrain.proof.comparison import StateDifference, compare
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.lock import LOCK_FILE
from graphtrain.storage.manifest import checkpoint_paths
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER, METRICS_FILE
from graphtrain.storage.state_files import Sections
from graphtrain.trainer.breakpoints import at_limit, parse_amount, with_breakpoints
from graphtrain.trainer.trainer import Trainer

# The entries of a manifest about the end of a run that equal runs have in common.
_FACTS_OF_THE_END = ("position", "ended", "step", "epoch", "metrics", "graph_hash", "hyper_parameters")


@dataclass(frozen=True)
class Cut:
    """Where a run was cut.

    Attributes:
        transition: the number of transitions before it. A run is cut at the first save point from the requested one on.
        place: in steps, epochs and batches: ``"step 3, epoch 0.75, batch 6/8"``.
        node: the path of the node that runs next.
    """

    transition: int
    place: str
    node: str

    @property
    def name(self) -> str:
        """Of the folder with the copy of the run directory."""
        return f"cut-{self.transition}"

    def __str__(self) -> str:
        return f"transition {self.transition} ({self.place}, next node {self.node})"


@dataclass(frozen=True)
class TrainedRun:
    """A run that was trained to its end, with the facts needed to compare it with others.

    Attributes:
        transitions: their number.
        progress: node -> the fields that the continuation depends on: no clocks, no observers.
        notes: the reasons why two such runs differ, one sentence each.
        has_timed_rows: True if rows of metrics are recorded by wall-clock time.
        cuts: its cuts.
    """

    transitions: int
    progress: Mapping[str, Sequence[str]]
    notes: Sequence[str] = ()
    has_timed_rows: bool = False
    cuts: Sequence[Cut] = ()

    def to_json(self) -> str:
        """As text, for another process."""
        return json.dumps({**vars(self), "cuts": [vars(cut) for cut in self.cuts]})

    @classmethod
    def from_json(cls, text: str) -> TrainedRun:
        """What `to_json` returned."""
        plain = json.loads(text)
        return cls(**{**plain, "cuts": tuple(Cut(**cut) for cut in plain["cuts"])})


@final
class CutTraining:
    """Trains to the end with cuts: at each, the state is saved and the run directory copied.

    Arguments:
        run_dir: that of the trainer.
        transitions: the numbers after which the run is cut, at the next save point.
        folder: for the copies.
        until: an amount at which the run stops, as in `Trainer.run`. Default: its own end.
    """

    def __init__(self, run_dir: Path, transitions: Sequence[int], folder: Path, until: str | None = None) -> None:
        self._run_dir, self._folder, self._until = run_dir, folder, until
        self._remaining = sorted(transitions, reverse=True)
        self._count = 0
        self._is_asked = False
        self._cuts: list[Cut] = []

    def run(self, trainer: Trainer) -> tuple[Outcome, TrainedRun]:
        """Train; returns the outcome and the facts about the run.

        Raises:
            UsageError: the run ends at a position that is not a save point.
        """
        outcome = trainer.run_to(self._transitions)
        compiled = self._compiled
        state = run_state.capture(compiled.state, set())  # progress is compared, not what is in transit
        essential = run_state.essential(compiled.state, state)["progress"]
        program, names = compiled.program, {path: [*fields] for path, fields in essential.items()}
        trained = TrainedRun(self._count, names, tuple(program.timed()), program.records_by_time, tuple(self._cuts))
        saved = checkpoint_paths(self._run_dir / CHECKPOINTS_FOLDER)
        sections = [state, *(read_checkpoint(path).sections for path in saved[-1:])]
        if not saved or compare(*(_progress(each, trained) for each in sections)).differences:
            raise UsageError(
                f"the run stops before the node `{trainer.position}`, which is not a save point, so that nothing can "
                "be compared there",
                "stop it elsewhere, as in --until '10 batches'",
            )
        return outcome, trained

    def _transitions(self, compiled: CompiledGraph, loop: Loop) -> list[Transition]:
        self._compiled, self._loop = compiled, loop
        limit = parse_amount(self._until, compiled.graph) if self._until is not None else Trigger("never")
        transitions = with_breakpoints(compiled.compiler.transitions, at_limit(compiled, limit), loop.requests)
        return [self._counted(transition) for transition in transitions]

    def _counted(self, transition: Transition) -> Transition:
        requests = self._loop.requests

        def copy_and_run() -> int:
            if self._is_asked and "save" not in requests:  # it was saved at this position
                self._copy()
            position = transition()
            self._count += 1
            # A save requested by the graph comes first: it may be written in the background.
            if self._remaining and self._count >= self._remaining[-1] and "save" not in requests:
                requests.save(SavePolicy("sync"))
                self._is_asked = True
            return position

        return copy_and_run

    def _copy(self) -> None:
        self._is_asked = False
        while self._remaining and self._remaining[-1] <= self._count:
            self._remaining.pop()
        compiled = self._compiled
        place = compiled.run_clock.describe()
        self._cuts.append(Cut(self._count, place, compiled.program.nodes[self._loop.position].path))
        copy_run(self._run_dir, self._folder / self._cuts[-1].name)


def copy_run(source: Path, target: Path) -> None:
    """Copy a run directory without its lock. Checkpoints, which are never changed, are linked where possible."""

    def copy_file(file: str, copied: str) -> None:
        if Path(file).is_relative_to(source / CHECKPOINTS_FOLDER):
            try:
                os.link(file, copied)
            except OSError:
                pass
            else:
                return
        shutil.copy2(file, copied)

    ignored = shutil.ignore_patterns(LOCK_FILE, ".*.tmp")
    shutil.copytree(source, target, symlinks=True, ignore=ignored, copy_function=copy_file)


def sampled_transitions(transitions: int, number: int, seed: int) -> list[int]:
    """The transitions at which to cut a run: this many of them, in order; all if there are no more.

    >>> sampled_transitions(1000, 4, seed=1) == sampled_transitions(1000, 4, seed=1)
    True
    >>> sampled_transitions(5, 20, seed=1)
    [1, 2, 3, 4]
    """
    places = range(1, transitions)  # after the last one nothing follows
    return sorted(random.Random(seed).sample(places, min(number, len(places))))  # noqa: S311 - no secret


# ---- the comparison


def compare_runs(expected: Path, actual: Path, run: TrainedRun) -> list[StateDifference]:
    """How the ends of two runs differ: in the state, the facts of the manifest, and the file of metrics.

    Arguments:
        run: the one in `expected`.

    Raises:
        UsageError: one of them has no checkpoint.
        CheckpointError: the last one of them is damaged.
    """
    before, now = _newest_checkpoint(expected), _newest_checkpoint(actual)
    differences: list[StateDifference] = []
    if before.digest != now.digest:
        differences += compare(_comparable(before, run), _comparable(now, run)).differences
        differences = differences or [StateDifference("digest", f"{before.digest[:16]} -> {now.digest[:16]}")]
    for name in _FACTS_OF_THE_END:
        values = getattr(before.manifest, name), getattr(now.manifest, name)
        if not is_equal(*values) and not (name == "metrics" and run.has_timed_rows):
            differences.append(StateDifference(name, " -> ".join(shorten(repr(value)) for value in values)))
    if not run.has_timed_rows and (row := first_different_row(_metrics(expected), _metrics(actual))):
        differences.append(row)
    return differences


def _newest_checkpoint(run_dir: Path) -> Checkpoint:
    paths = checkpoint_paths(run_dir / CHECKPOINTS_FOLDER)
    if not paths:
        raise UsageError(f"`{run_dir}` holds no checkpoint")
    return read_checkpoint(paths[-1])


def _comparable(checkpoint: Checkpoint, run: TrainedRun) -> dict[str, Any]:
    """The fields that the continuation depends on."""
    sections = {**checkpoint.sections, "progress": _progress(checkpoint.sections, run)}
    left_out = OF_TIMED_ROWS if run.has_timed_rows else ()
    return {name: part for name, part in sections.items() if name not in left_out}


def _progress(sections: Sections, run: TrainedRun) -> dict[str, dict[str, Any]]:
    return {
        path: {name: value for name, value in saved.items() if name in run.progress[path]}
        for path, saved in sections["progress"].items()
        if path in run.progress
    }


def _metrics(run_dir: Path) -> bytes:
    path = run_dir / METRICS_FILE
    return path.read_bytes() if path.exists() else b""


def first_different_row(expected: bytes, actual: bytes) -> StateDifference | None:
    """The first row of metrics that differs between two files; None if they are equal.

    >>> print(first_different_row(b'{"step": 1, "loss": 0.5}\\n', b'{"step": 1, "loss": 0.25}\\n'))
    metrics.jsonl, row 1: loss 0.5 -> 0.25
    >>> print(first_different_row(b'{"step": 1}\\n{"step": 2}\\n', b'{"step": 1}\\n'))
    metrics.jsonl, row 2: step 2 -> none
    """
    rows = zip_longest(expected.splitlines(), actual.splitlines(), fillvalue=b"{}")
    for number, lines in enumerate(rows, start=1):
        if lines[0] != lines[1]:
            before, now = map(json.loads, lines)
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            changes = [f"{name} {before.get(name, 'none')} -> {now.get(name, 'none')}" for name in names]
            return StateDifference(f"{METRICS_FILE}, row {number}", ", ".join(changes))
    return None
