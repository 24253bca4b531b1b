"""A run directory as something to look into: which checkpoints belong to the run as it went. Nothing is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.run_directory import (
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    STARTS_FILE,
    STATUS_FILE,
    read_starts,
)
from graphtrain.storage.store import FolderStore


@dataclass(frozen=True)
class SavedCheckpoint:
    """A sound checkpoint of a past run; its tensors are read when they are needed.

    Attributes:
        counts: node path -> field -> value, of what is a number.
        device: where the models were, as far as there is such a device here.
    """

    path: Path
    manifest: Mapping[str, Any]
    counts: Mapping[str, Mapping[str, int | float]]
    device: str

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def place(self) -> tuple[int, float, int]:
        """What never grows less along one line of a run."""
        return self.manifest["step"], self.epoch, self.manifest["metrics_bytes"]

    @property
    def epoch(self) -> float:
        """Epochs trained, as a fraction."""
        epoch = self.manifest.get("epoch", 0)
        return float(epoch) if isinstance(epoch, int | float) else 0.0


@dataclass(frozen=True)
class Segment:
    """What was trained between two checkpoints.

    Attributes:
        start: None for the beginning of the run.
        change: what a person changed in between, so that nothing can be compared; empty for nothing.
    """

    start: SavedCheckpoint | None
    goal: SavedCheckpoint
    change: str = ""


@final
class PastRun:
    """The run in a directory.

    Arguments:
        notify: told of every checkpoint that is passed over.

    Raises:
        UsageError: there is no run.
    """

    def __init__(self, run_dir: Path, notify: Callable[[str], None]) -> None:
        self.path = run_dir
        self._notify = notify
        self._folder = FolderStore(run_dir / CHECKPOINTS_FOLDER, notify)
        if not (run_dir / STATUS_FILE).exists() and not self._folder.paths():
            raise UsageError(f"there is no run in `{run_dir}`", f"a run directory holds a file {STATUS_FILE}")

    def line(self, spans: int | None = None) -> list[SavedCheckpoint]:
        """The newest sound checkpoints that lie on the way to the newest one, the oldest first.

        Arguments:
            spans: no more of them than it takes to have so many spans with batches in them. Default: all.
        """
        metrics = self.path / METRICS_FILE
        rows = metrics.stat().st_size if metrics.exists() else 0
        found: list[SavedCheckpoint] = []
        for path in reversed(self._folder.paths()):
            if spans is not None and _spans(found) >= spans:
                break
            try:
                kept = _kept(path)
            except CheckpointError as error:
                self._notify(f"passed over an unsound checkpoint: {error.message}")
                continue
            newer = found[-1].place if found else None
            if kept.manifest["metrics_bytes"] > rows or (newer is not None and not _lies_before(kept.place, newer)):
                self._notify(f"passed over {path.name}: the run was resumed from an earlier checkpoint")
                continue
            found.append(kept)
        return found[::-1]

    def segments(self, last: int | None = None) -> list[Segment]:
        """The spans between neighbouring checkpoints, the oldest first; the first one from the beginning, if it can be.

        Arguments:
            last: how many of the newest, those without a batch aside. Default: all.
        """
        line = self.line(last)
        found = [Segment(start, goal, self._change(start, goal)) for start, goal in itertools.pairwise(line)]
        if line and (last is None or _spans(line) < last) and self._is_first(line[0]):
            if reason := self.not_from_the_beginning(line[0]):
                self._notify(f"passed over what was before {line[0].name}: {reason}")
            else:
                found.insert(0, Segment(None, line[0]))
        return found

    def _is_first(self, kept: SavedCheckpoint) -> bool:
        return int(kept.name.partition("-")[0]) == 1

    def _change(self, start: SavedCheckpoint, goal: SavedCheckpoint) -> str:
        before, after = (
            one.manifest.get("hyper_parameters_in_force", one.manifest.get("hyper_parameters")) for one in (start, goal)
        )
        if before != after:
            return "other hyper-parameters were taken there"
        # Another graph from the checkpoint on is gone through with; one that came later, at some node, is not.
        if start.manifest["graph_hash"] != goal.manifest["graph_hash"] and start.name not in self._starts():
            return "the graph was rewired there"
        return ""

    def _starts(self) -> list[Any]:
        """The checkpoint that each start of the run went on from, None for the beginning; empty if it is not known."""
        return [start["checkpoint"] for start in read_starts(self.path) if "checkpoint" in start]

    def not_from_the_beginning(self, oldest: SavedCheckpoint) -> str:
        """Why the run cannot be gone through from its beginning; empty if it can."""
        starts = self._starts()
        if not starts:
            return f"how the run began is not known, for its {STARTS_FILE} cannot be read"
        if starts[0] is not None:
            return f"the run began from {starts[0]} of another run"
        if not oldest.manifest["about"].get("command"):
            return "the run was not begun by the command, so how its setup was seeded is not known"
        return ""


def _spans(line: list[SavedCheckpoint]) -> int:
    """How many of the spans between checkpoints have batches in them: the one at the very end of a run has none."""
    return sum(one.place[:2] != other.place[:2] for one, other in itertools.pairwise(line))


def _kept(path: Path) -> SavedCheckpoint:
    checkpoint = read_checkpoint(path)
    counts = {
        node: {
            name: value
            for name, value in fields.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        for node, fields in checkpoint.sections["progress"].items()
        if isinstance(fields, Mapping)
    }
    return SavedCheckpoint(path, checkpoint.manifest, counts, _device(checkpoint.sections["resources"]) or "cpu")


def _device(value: Any) -> str:
    """The first device met that is not the processor, where counters of optimizers stay in any case."""
    if isinstance(value, torch.Tensor):
        return "" if value.device.type == "cpu" else str(value.device)
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((found for one in inner if (found := _device(one))), "")


def _lies_before(place: tuple[int, float, int], newer: tuple[int, float, int]) -> bool:
    return all(one <= other for one, other in zip(place, newer, strict=True))
