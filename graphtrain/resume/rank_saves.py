"""Saves of several ranks: one decision, one checkpoint, one outcome.

Every rank copies its state, and they synchronise: if one cannot copy, none saves. Then each writes its files to a
common folder, in a background thread. Meanwhile ranks exchange messages through the store, not by collective calls,
which training uses. Once all have written, rank 0 writes the manifest, renames the folder, and publishes the outcome.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import msgpack

from graphtrain.errors import CheckpointError, GraphtrainError, RankFailedError, RanksDivergedError
from graphtrain.program.agreement import error_as_plain, error_of_plain
from graphtrain.ranks import LostRankError, Ranks
from graphtrain.resume.equal_ranks import first_difference
from graphtrain.storage.checkpoint import reason_of
from graphtrain.storage.manifest import RANK_FACTS, Manifest, SavedCheckpoint
from graphtrain.storage.rank_files import common_names, manifest_of, write_files
from graphtrain.storage.state_files import StagedState

_SLICE_SECONDS = 0.5
# How long ranks wait for others in a save once the run has failed: they may be dead.
_HURRIED_SECONDS = 10.0

# The topics of what a rank publishes in a save; only rank 0 publishes the outcome.
_DIGESTS, _FILES, _OUTCOME = "digests", "files", "outcome"
_OVER = "the checkpoint is over"  # in place of messages that nobody reads any more


@final
@dataclass
class RankSave:
    """The part of one rank in writing one checkpoint; with one process, all of it.

    Attributes:
        key: the prefix of the keys of this save in the store.
        required: what must be equal on all ranks, as `StatefulObjects.must_be_equal` names it.
        folder: the folder of checkpoints, as this rank sees it.
        previous: the name of the previous checkpoint, to whose files equal ones become links; empty for none.
    """

    ranks: Ranks
    key: str
    staged: StagedState
    required: set[str]
    folder: Path
    previous: str
    _end: float = math.inf

    def shorten_timeout(self) -> None:
        """From now on, wait only a few seconds for other ranks, which may be dead."""
        self._end = min(self._end, time.monotonic() + _HURRIED_SECONDS)

    # ---- in the threads that write

    def publish_outcome(self, outcome: SavedCheckpoint | BaseException) -> None:
        """On rank 0, publish the written checkpoint, or the error."""
        if self.ranks.world_size == 1:
            return
        if isinstance(outcome, SavedCheckpoint):
            common = {"digest": outcome.manifest.digest, "not_finite": outcome.manifest.not_finite}
            self._publish(_OUTCOME, {"name": outcome.name, "facts": common})
            self._fail(_OVER)
            return
        error = outcome if isinstance(outcome, GraphtrainError) else CheckpointError(reason_of(outcome))
        self._fail(error.message)
        with suppress(LostRankError):
            self._publish(_OUTCOME, {"error": error_as_plain(error)})

    def files(self, folder: Path, facts: Manifest) -> Manifest:
        """On rank 0, write its files to a new folder, and wait for those of the other ranks; returns the manifest."""
        other_ranks = range(1, self.ranks.world_size)
        try:
            common, report = self._write_files(folder.name, facts)
            reports = [report, *[self._read(_FILES, rank) for rank in other_ranks]]
        except Exception as error:
            self._fail(reason_of(error))
            for rank in other_ranks:  # the folder is removed once none writes any more
                with suppress(GraphtrainError):
                    self._read(_FILES, rank)
            raise
        return manifest_of(facts, self.staged, common, reports)

    def follow(self, facts: Manifest) -> SavedCheckpoint:
        """On other ranks than 0, write their files; returns the outcome, or raises the error, that rank 0 publishes."""
        try:
            self._publish(_FILES, self._write_files("", facts)[1])
        except Exception as error:
            reason = error.message if isinstance(error, GraphtrainError) else reason_of(error)
            # If ranks differ, each finds that by the digests.
            self._fail(reason, (_FILES,) if isinstance(error, RanksDivergedError) else (_DIGESTS, _FILES))
        outcome = self._read(_OUTCOME, 0)
        self._fail(_OVER)
        if "error" in outcome:
            raise error_of_plain(outcome["error"])
        return SavedCheckpoint(self.folder / outcome["name"], replace(facts, **outcome["facts"]))

    def has_outcome(self, timeout_seconds: float) -> bool:
        """True if rank 0 has published the outcome, within this time."""
        return self.ranks.read(f"{self.key}/{_OUTCOME}/0", timeout_seconds) is not None

    def _write_files(self, name: str, facts: Manifest) -> tuple[Collection[str] | None, dict[str, Any]]:
        """Compare digests with the other ranks, and write the files of this rank to the folder that rank 0 names."""
        state, common = self.staged, None
        if self.ranks.world_size > 1:
            self._publish(_DIGESTS, {"digests": state.digests, "folder": name})
            of_ranks = [self._read(_DIGESTS, rank) for rank in range(self.ranks.world_size)]
            name, digests = of_ranks[0]["folder"], [each["digests"] for each in of_ranks]
            required = [
                {f"`{of}`": each[of] for of in each if not self.required.isdisjoint((of, of.partition("/")[0]))}
                for each in digests
            ]
            if difference := first_difference(required):
                raise RanksDivergedError(difference, "do not change it on one rank only")
            common = common_names(digests)
        folder = self.folder / name
        if not folder.is_dir():
            raise CheckpointError(
                f"rank 0 writes to {folder}, which this rank does not see",
                "put the run directory on a file system that all ranks share",
            )
        previous = self.folder / self.previous if self.previous else None
        files = write_files(folder, self.ranks.rank, state, common, previous)
        report = {
            "files": files,
            "digest": state.digest(files if common is None else {}),
            "rank_facts": {name: getattr(facts, name) for name in RANK_FACTS},
        }
        if state.pieces:
            report["not_finite"] = state.weight_that_is_not_finite
        return common, report

    # ---- messages between ranks

    def _publish(self, topic: str, value: Any) -> None:
        self.ranks.publish(f"{self.key}/{topic}/{self.ranks.rank}", msgpack.packb(value))

    def _fail(self, reason: str, topics: Sequence[str] = (_DIGESTS, _FILES)) -> None:
        """Publish a failure under each topic, in place of what other ranks wait for."""
        for topic in topics:
            with suppress(LostRankError):
                self._publish(topic, {"failed": reason})

    def _read(self, topic: str, rank: int) -> Any:
        end, has_ended = time.monotonic() + self.ranks.timeout_seconds, False
        while (data := self.ranks.read(f"{self.key}/{topic}/{rank}", _SLICE_SECONDS)) is None:
            if self.staged.abandoned.is_set():
                raise CheckpointError("the checkpoint was abandoned")
            if has_ended:
                raise RankFailedError(f"rank {rank} ended while a checkpoint was written")
            if time.monotonic() > min(end, self._end):
                raise CheckpointError(f"cannot write the checkpoint: rank {rank} has not written its part of it")
            has_ended = rank in self.ranks.ended()  # read once more: it may have published before it ended
        message = msgpack.unpackb(data)
        if "failed" in message:
            raise CheckpointError(f"rank {rank} cannot write its part of the checkpoint: {message['failed']}")
        return message
