"""The history of a run, read from its directory: its checkpoints, and the spans between them. Nothing is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from graphtrain.errors import CheckpointError
from graphtrain.ranks import current_ranks
from graphtrain.report.run import Run
from graphtrain.storage.manifest import SavedCheckpoint
from graphtrain.storage.named import lineage_in
from graphtrain.storage.run_directory import STARTS_FILE


@dataclass(frozen=True)
class Segment:
    """The training between two checkpoints.

    Attributes:
        start: None for the beginning of the run.
        change: a change by the user in between, so that nothing can be compared; empty if none.
    """

    start: SavedCheckpoint | None
    goal: SavedCheckpoint
    change: str = ""

    @property
    def names(self) -> tuple[str, str]:
        """The names of both ends."""
        return self.start.path.name if self.start is not None else "the beginning", self.goal.path.name

    def __str__(self) -> str:
        return " to ".join(self.names)


@final
class RunHistory:
    """The run in a directory.

    Arguments:
        notify: called with a line for every checkpoint that is skipped.

    Raises:
        UsageError: there is no run.
    """

    def __init__(self, run_dir: Path, notify: Callable[[str], None]) -> None:
        self.path = run_dir
        self._notify = notify
        # The checkpoint that each start of the run resumed from, None for the beginning; empty if it is not known.
        self._starts = [start["checkpoint"] for start in Run(run_dir).starts]

    def lineage(self, spans: int | None = None) -> list[SavedCheckpoint]:
        """The newest checkpoint and its predecessors, the oldest first.

        Arguments:
            spans: only the newest, with this many spans with batches between them. Default: all.
        """
        newest_first: list[SavedCheckpoint] = []
        for checkpoint in lineage_in(self.path, self._notify):
            if spans is not None and _trained_spans(newest_first) >= spans:
                break
            try:
                newest_first.append(SavedCheckpoint.sound(*checkpoint))
            except CheckpointError as error:
                self._notify(f"skipped a damaged checkpoint: {error.message}")
        return newest_first[::-1]

    def segments(self, last: int | None = None) -> list[Segment]:
        """The spans between neighbouring checkpoints, the oldest first, with that from the beginning where possible.

        Arguments:
            last: the number of newest ones with batches. Default: all.
        """
        lineage = self.lineage(last)
        segments = [Segment(start, goal, self._change(start, goal)) for start, goal in itertools.pairwise(lineage)]
        if not lineage or (last is not None and _trained_spans(lineage) >= last):
            return segments
        oldest = lineage[0]
        # The first checkpoints were deleted, not replaced.
        if oldest.manifest.follows:
            return segments
        if reason := self.why_not_from_the_beginning(oldest):
            self._notify(f"skipped the span before {oldest.path.name}: {reason}")
            return segments
        return [Segment(None, oldest), *segments]

    def _change(self, start: SavedCheckpoint, goal: SavedCheckpoint) -> str:
        if reason := _why_not_by_as_many(goal):
            return reason
        if start.manifest.hyper_parameters != goal.manifest.hyper_parameters:
            return "hyper-parameters were changed in between"
        if start.manifest.returns != goal.manifest.returns:
            return "the run returned to an earlier checkpoint in between"
        # A graph that was changed when the run resumed from `start` is replayed from there; one that was changed
        # later, at a node that no checkpoint tells, is not.
        if start.manifest.graph_hash != goal.manifest.graph_hash and start.path.name not in self._starts:
            return "the graph was rewired in between"
        return ""

    def why_not_from_the_beginning(self, oldest: SavedCheckpoint) -> str:
        """Why the run cannot be replayed from its beginning; empty if it can."""
        if not self._starts:
            return f"how the run started is not known, because its {STARTS_FILE} cannot be read"
        if self._starts[0] is not None:
            return f"the run started from {self._starts[0]} of another run"
        if reason := _why_not_by_as_many(oldest):
            return reason
        if oldest.manifest.returns:
            return "the run returned to an earlier checkpoint in it"
        if not oldest.manifest.about.get("command"):
            return "the run was not started by the command, so that the seed of its setup is not known"
        return ""


def _why_not_by_as_many(goal: SavedCheckpoint) -> str:
    """Why the present number of processes cannot repeat the training to a checkpoint; empty if it can."""
    ranks, now = goal.manifest.ranks, current_ranks().world_size
    return "" if ranks == now else f"it was trained by {_processes(ranks)}, whose bits {now} cannot repeat"


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes (--processes {number})"


def _trained_spans(lineage: list[SavedCheckpoint]) -> int:
    """The number of spans between checkpoints with batches: the one at the very end of a run has none."""
    facts = [checkpoint.manifest for checkpoint in lineage]
    moments = [(each.step, each.epoch, each.clock_of, each.clocks) for each in facts]
    return sum(start != goal for start, goal in itertools.pairwise(moments))
