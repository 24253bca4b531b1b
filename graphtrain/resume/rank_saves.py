"""Saves of several ranks: one decision, one checkpoint, one outcome.

Every rank copies its state, and they synchronise: if one cannot copy, none saves. Then each writes its files to one
common folder, in a background thread. Meanwhile they exchange messages through the store, never by collective calls:
those belong to the run. Once all have written, rank 0 writes the manifest and renames the folder. It decides the
outcome, which the others read.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, final

import msgpack

from graphtrain.errors import CheckpointError, GraphtrainError, RankFailedError, RanksDivergedError
from graphtrain.program.agreement import Agreement
from graphtrain.ranks import LostRankError, Ranks, Record
from graphtrain.storage.checkpoint import new_folder, reason_of, write_checkpoint, write_manifest
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.manifest import OWN_FACTS, Manifest
from graphtrain.storage.rank_files import Slim, manifest_of, write_files
from graphtrain.storage.run_files import Written
from graphtrain.storage.sharing import MustBeEqual, Sharing, differences
from graphtrain.storage.state_files import Digests, StagedState

_SLICE_SECONDS = 0.5
# How long ranks wait for others in a save once the run has failed: they may be dead.
_HURRIED_SECONDS = 10.0
_MOST_DIFFERENCES = 3

_WRITTEN = "written"
# Any other outcome of a save -> the error that all ranks raise.
_ERRORS: Mapping[str, type[GraphtrainError]] = {
    "failed": CheckpointError,
    "diverged": RanksDivergedError,
    "lost": RankFailedError,
}


@final
class RankSaves:
    """The saves of a run on one of its ranks, possibly the only one.

    Arguments:
        agreement: with the other ranks.

    Attributes:
        are_one: True if this process is the only rank.
        run: the prefix of the keys of this run in the store, the same on all ranks; set when the run begins.
        begun: how many saves were begun.
    """

    def __init__(self, agreement: Agreement) -> None:
        self.agreement, self.ranks = agreement, agreement.ranks
        self.are_one = self.ranks.world_size == 1
        self.run = "run"
        self.begun = self._copies = 0

    def copied(self, copy: Callable[[], Any]) -> Any:
        """Copy the state on every rank; returns the copy of this one.

        Raises:
            UnsaveableError: a rank could not copy; all ranks raise the same message, which names the first such rank.
        """
        if self.are_one:
            return copy()
        self.agreement.synchronise("save")  # from here on all ranks have the requests of each
        refusal, copied = None, None
        try:
            copied = copy()
        except UnsaveableError as error:
            refusal = [error.path, error.message.removeprefix(f"{error.path} cannot be saved: "), error.hint]
        self._copies += 1
        key = f"{self.run}/refused/{self._copies}"
        if refusal is not None:
            self.ranks.publish(f"{key}/{self.ranks.rank}", msgpack.packb(refusal))
        records = self.agreement.synchronise("save", Record(has_failed=refusal is not None))
        refusing = next((rank for rank, record in enumerate(records) if record.has_failed), None)
        if refusing is None:
            return copied
        if refusal is None or refusing != self.ranks.rank:
            published = self.ranks.read(f"{key}/{refusing}", self.ranks.timeout_seconds)
            refusal = msgpack.unpackb(published) if published is not None else ["the state", "it gave no reason", ""]
        path, reason, hint = refusal
        raise UnsaveableError(path, f"{reason} (rank {refusing})", hint)

    def save(
        self,
        staged: StagedState,
        required: Callable[[], MustBeEqual],
        folder: Path,
        slim: Slim | None,
    ) -> RankSave:
        """Begin the save that all ranks have copied their state for."""
        self.begun += 1
        equal = MustBeEqual() if self.are_one else required()
        return RankSave(self.ranks, f"{self.run}/save/{self.begun}", staged, equal, folder, slim)


@final
class RankSave:
    """The part of one rank in one checkpoint; for one process, all of it.

    Arguments:
        key: the prefix of the keys of this save in the store.
        required: what has to be equal on all ranks.
        folder: of the checkpoints, as this rank sees it.
        slim: how the files are divided; that of rank 0 applies to all. Default: tensors by their resource.

    Attributes:
        leads: True on rank 0.
        hurried: once it is set, ranks that may be dead are no longer waited for.
    """

    def __init__(
        self,
        ranks: Ranks,
        key: str,
        staged: StagedState,
        required: MustBeEqual,
        folder: Path,
        slim: Slim | None = None,
    ) -> None:
        self._ranks, self._key, self._staged = ranks, key, staged
        self._required, self._folder, self._slim = required, folder, slim
        self._facts = Manifest()
        self.leads = not ranks.rank
        self.hurried = Event()
        self._hurried_at: float | None = None
        self._published: set[str] = set()
        self._files: dict[str, Any] = {}

    # ---- in the threads that write

    def lead(self, save: Callable[[], Written], facts: Manifest) -> Written:
        """Save as rank 0, and publish the outcome.

        Arguments:
            save: calls `write`, and does what else belongs to a save.
            facts: what this rank knows for the manifest.

        Raises:
            CheckpointError: it cannot be written.
            RanksDivergedError: what must be equal on all ranks is not.
            RankFailedError: a rank has ended.
        """
        self._facts = facts
        try:
            written = save()
        except BaseException as error:
            what = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "failed")
            message = error.message if isinstance(error, GraphtrainError) else f"{type(error).__name__}: {error}"
            self._give_up(message)
            with suppress(LostRankError):
                self._publish("outcome", [what, message, getattr(error, "hint", "")])
            raise
        outcome = {"digest": written.manifest.digest, "not_finite": written.manifest.not_finite}
        self._publish("outcome", [_WRITTEN, written.path.name, outcome])
        self._forget()
        return written

    def follow(self, facts: Manifest) -> Written:
        """Write the files of this rank, and return the outcome that rank 0 publishes.

        Arguments:
            facts: what this rank knows for the manifest; whatever is not its own comes from rank 0.

        Raises:
            CheckpointError: it cannot be written, on this rank or another.
            RanksDivergedError: what must be equal on all ranks is not.
            RankFailedError: a rank has ended.
        """
        self._facts = facts
        try:
            name, slim = self._read("folder", 0)
            folder, self._slim = self._folder / name, Slim(**slim) if slim is not None else None
            if not folder.is_dir():
                raise CheckpointError(
                    f"rank 0 writes to {folder}, which this rank does not see",
                    "put the run directory on a file system that all ranks share",
                )
            self._write_files(folder)
        except Exception as error:
            self._give_up(error.message if isinstance(error, GraphtrainError) else reason_of(error))
        what, text, more = self._read("outcome", 0)
        self._forget()
        if what == _WRITTEN:
            return Written(self._folder / text, replace(facts, **more))
        raise _ERRORS[what](text, more)

    def has_outcome(self, timeout_seconds: float) -> bool:
        """True if rank 0 has published the outcome, within this time."""
        return self._ranks.read(self._of("outcome", 0), timeout_seconds) is not None

    def write(self, path: Path, facts: Manifest) -> Manifest:
        """Write the folder of the checkpoint as rank 0, once all ranks have written; returns its manifest."""
        if self._ranks.world_size == 1:
            return write_checkpoint(path, self._staged, facts, self._slim)
        with new_folder(path, self._staged.given_up) as folder:
            try:
                self._publish("folder", [folder.name, self._slim.as_plain() if self._slim is not None else None])
                state, sharing, summaries = self._write_files(folder)
                files = [self._files, *(self._read("files", rank) for rank in range(1, self._ranks.world_size))]
            except Exception as error:
                self._give_up(reason_of(error))
                for rank in range(1, self._ranks.world_size):  # the folder is removed once none writes any more
                    with suppress(GraphtrainError):
                        self._read("files", rank)
                raise
            manifest = manifest_of(facts, state, sharing, summaries, files, self._slim)
            write_manifest(folder, manifest)
        return manifest

    def _write_files(self, folder: Path) -> tuple[StagedState, Sharing, list[Digests]]:
        """Write this rank's files, once all ranks know what they have in common."""
        state = self._staged
        summaries = [Digests(**digests) for digests in self._gather("summary", state.summary.as_plain())]
        if lines := [*differences(self._required, summaries, state.pieces)]:
            shown = "; ".join(lines[:_MOST_DIFFERENCES])
            more = f"; and {len(lines) - _MOST_DIFFERENCES} more" if len(lines) > _MOST_DIFFERENCES else ""
            raise RanksDivergedError(
                f"{shown}{more}",
                "it must be the same on all ranks: do not change it on one rank only",
            )
        sharing = Sharing.of(state, summaries)
        written = write_files(folder, self._ranks.rank, state, sharing, self._slim)
        self._files = {"files": written, "own": {name: getattr(self._facts, name) for name in OWN_FACTS}}
        if state.pieces:
            self._files["not_finite"] = state.weight_that_is_not_finite
        self._publish("files", self._files)
        return state, sharing, summaries

    # ---- messages between ranks

    def _of(self, topic: str, rank: int) -> str:
        return f"{self._key}/{topic}/{rank}"

    def _publish(self, topic: str, value: Any) -> None:
        self._published.add(topic)
        self._ranks.publish(self._of(topic, self._ranks.rank), zlib.compress(msgpack.packb({"value": value}), 1))

    def _give_up(self, reason: str) -> None:
        """Publish a failure wherever the others may wait for this rank."""
        for topic in ("folder", "summary", "files"):
            if topic not in self._published:
                with suppress(LostRankError):
                    message = zlib.compress(msgpack.packb({"failed": reason}), 1)
                    self._ranks.publish(self._of(topic, self._ranks.rank), message)

    def _forget(self) -> None:
        """Free the messages of this rank in the store: nobody reads them any more."""
        for topic in self._published - {"outcome"}:
            with suppress(LostRankError):
                self._ranks.publish(self._of(topic, self._ranks.rank), b"")

    def _gather(self, topic: str, value: Any) -> list[Any]:
        """Publish a value; returns those of all ranks."""
        self._publish(topic, value)
        return [
            value if rank == self._ranks.rank else self._read(topic, rank) for rank in range(self._ranks.world_size)
        ]

    def _read(self, topic: str, rank: int) -> Any:
        end, has_ended = time.monotonic() + self._ranks.timeout_seconds, False
        while (data := self._ranks.read(self._of(topic, rank), _SLICE_SECONDS)) is None:
            if self._staged.given_up.is_set():
                raise CheckpointError("the checkpoint was given up")
            if self.hurried.is_set():
                self._hurried_at = self._hurried_at or time.monotonic()
                end = min(end, self._hurried_at + _HURRIED_SECONDS)
            if has_ended:
                raise RankFailedError(f"rank {rank} ended while a checkpoint was written")
            if time.monotonic() > end:
                raise CheckpointError(f"cannot write the checkpoint: rank {rank} has not written its part of it")
            has_ended = rank in self._ranks.ended()  # read once more: it may have published before it ended
        message = msgpack.unpackb(zlib.decompress(data)) if data else {"failed": "the checkpoint is over"}
        if "failed" in message:
            raise CheckpointError(f"rank {rank} cannot write its part of the checkpoint: {message['failed']}")
        return message["value"]
