"""The spans between the checkpoints of a run, read from its directory. Nothing is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
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
        change: why the span cannot be compared, such as a change by the user; empty if it can.
    """

    start: SavedCheckpoint | None
    goal: SavedCheckpoint
    change: str = ""

    def __str__(self) -> str:
        return f"{self.start.name if self.start is not None else 'the beginning'} to {self.goal.name}"


@final
class RunHistory:
    """The checkpoints of the run in a directory.

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

    def lineage(self, most: int | None = None) -> list[SavedCheckpoint]:
        """The newest sound checkpoint and its predecessors, oldest first; at most `most` of them. Default: all."""
        newest_first: list[SavedCheckpoint] = []
        for checkpoint in lineage_in(self.path, self._notify):
            if len(newest_first) == most:
                break
            try:
                newest_first.append(SavedCheckpoint.verified(*checkpoint))
            except CheckpointError as error:
                self._notify(f"skipped a damaged checkpoint: {error.message}")
        return newest_first[::-1]

    def segments(self, last: int | None = None) -> list[Segment]:
        """The spans between consecutive checkpoints, oldest first, with the one from the beginning where possible.

        Arguments:
            last: only this many of the newest spans. Default: all.
        """
        lineage = self.lineage(None if last is None else last + 1)
        begins = bool(lineage) and not lineage[0].manifest.follows  # else those before it were deleted
        return self.between(lineage, from_the_beginning=begins and (last is None or len(lineage) <= last))

    def between(self, checkpoints: Sequence[SavedCheckpoint], *, from_the_beginning: bool = True) -> list[Segment]:
        """The spans between these checkpoints, oldest first."""
        segments = [Segment(start, goal, self._change(start, goal)) for start, goal in itertools.pairwise(checkpoints)]
        if not from_the_beginning:
            return segments
        return [Segment(None, checkpoints[0], self.why_not_from_the_beginning(checkpoints[0])), *segments]

    def _change(self, start: SavedCheckpoint, goal: SavedCheckpoint) -> str:
        before, after = start.manifest, goal.manifest
        if before.hyper_parameters != after.hyper_parameters:
            return "hyper-parameters were changed in between"
        if before.returns != after.returns:
            return "the run returned to an earlier checkpoint in between"
        # A graph that changed when the run resumed from `start` is replayed from there. Where it was rewired later, no
        # checkpoint tells the position.
        if before.graph_hash != after.graph_hash and start.name not in self._starts:
            return "the graph was rewired in between"
        return _why_not_with_these_ranks(goal)

    def why_not_from_the_beginning(self, oldest: SavedCheckpoint) -> str:
        """Why the run cannot be replayed from its beginning; empty if it can."""
        if not self._starts:
            return f"how the run started is not known, because its {STARTS_FILE} cannot be read"
        if self._starts[0] is not None:
            return f"the run started from {self._starts[0]} of another run"
        if oldest.manifest.returns:
            return "the run returned to an earlier checkpoint in it"
        if not oldest.manifest.about.get("command"):
            return "the run was not started by the `graphtrain` command, so the seed of its setup is not known"
        return _why_not_with_these_ranks(oldest)


def _why_not_with_these_ranks(goal: SavedCheckpoint) -> str:
    """Why this number of processes cannot repeat the training up to a checkpoint; empty if it can."""
    ranks, now = goal.manifest.ranks, current_ranks().world_size
    return "" if ranks == now else f"it was trained in {ranks} processes, and now there are {now}"
