"""The files of a run: checkpoints, metrics and status, kept consistent with each other."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.files import readable_failure, remove_leftovers, temporary_name
from graphtrain.storage.lock import locked
from graphtrain.storage.manifest import Manifest, SavedCheckpoint, checkpoint_number, checkpoint_paths, read_manifest
from graphtrain.storage.named import checkpoint_folder, newest_in
from graphtrain.storage.retention import Ranking, Retention, expired, is_replaced, lineage_of, rankings_of
from graphtrain.storage.run_directory import (
    BEST,
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    NODES_FILE,
    STARTS_FILE,
    RowsFile,
    process_facts,
    read_starts,
    write_status,
)

OnRank0 = Callable[[Callable[[], Any]], Any]
"""Calls a function on rank 0, and returns its result on all ranks."""


@final
class RunFiles:
    """The run directory of a trainer.

    Rank 0 writes all files, except the part of each rank in a checkpoint. What rank 0 reads is sent to all ranks, and
    its errors are raised on all.

    Arguments:
        notify: receives messages for the user, one line each.
        on_rank_0: calls a function on rank 0, and returns its result, plain data, on all ranks.
        writes: True on rank 0.

    Attributes:
        latest: the newest checkpoint, written or resumed from.
        keeps_newest: True if the next checkpoint must not replace the newest, to which the user may want to return.
        metrics, nodes: the files of metrics and of counts.
        path: the run directory as the user named it; `folder` is its absolute path, and `checkpoints` the folder of
            its checkpoints.
        count: called when the state for a checkpoint is copied, to append the counts so far.
    """

    def __init__(self, run_dir: str | Path, notify: Callable[[str], None], *, on_rank_0: OnRank0, writes: bool) -> None:
        self.path = Path(run_dir)
        self._on_rank_0, self.writes = on_rank_0, writes
        self.folder = self.path.absolute()  # the current folder may change
        self.checkpoints = self.folder / CHECKPOINTS_FOLDER
        self._files = [RowsFile(self.folder / name) for name in (METRICS_FILE, NODES_FILE, STARTS_FILE)]
        self.metrics, self.nodes, self._starts = self._files
        self._starts_bytes: int | None = None  # when this trainer began or resumed the run
        self.count: Callable[[], Any] = lambda: None
        self._notify = notify
        self._run = ""
        self._process = os.getpid()
        self._manifests: dict[Path, Manifest] = {}  # those read so far, of the existing checkpoints
        self._rankings: dict[str, Ranking] = {}
        self._newest = 0  # the number of the checkpoint that the run came from
        self._replaced: list[SavedCheckpoint] = []  # which the one that is being written replaces
        self.latest: SavedCheckpoint | None = None
        self.keeps_newest = False
        on_rank_0(self._create)

    def _create(self) -> None:
        with readable_failure(self.folder, UsageError):
            self.checkpoints.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A context that holds the lock, so that no other process trains in the directory.

        Raises:
            UsageError: another process trains there, or has since this trainer last held the lock.
        """
        with ExitStack() as stack:

            def lock() -> None:
                stack.enter_context(locked(self.folder, self._notify))
                if self._starts_bytes not in (None, self._starts.length()):
                    raise UsageError(
                        f"another process has resumed the run in `{self.path}` since this trainer stopped",
                        "create a new Trainer, which resumes the run as it is now",
                    )

            self._on_rank_0(lock)
            for file in self._files:
                stack.callback(file.close)
            yield

    # ---- starting

    def find(self, resume: str | Path, read: Callable[[Path, Manifest | None], Checkpoint]) -> Checkpoint | None:
        """The checkpoint to resume from; None to start from the beginning. Called on rank 0 only.

        Arguments:
            read: reads a checkpoint from its folder, with its manifest if that was read already.

        Raises:
            UsageError: the directory holds a run, and `resume` is "never" or names a checkpoint of another run.
            CheckpointError: the named checkpoint is damaged.
        """
        remove_leftovers(self.folder)
        remove_leftovers(self.checkpoints)
        has_checkpoints = bool(checkpoint_paths(self.checkpoints))
        holds_a_run = has_checkpoints or bool(read_starts(self.folder))
        if not holds_a_run and (self.folder / METRICS_FILE).exists():
            raise UsageError(
                f"`{METRICS_FILE}` in `{self.path}` was not written by a run",
                "choose another run directory, or move that file",
            )
        if resume == "never" and holds_a_run:
            raise UsageError(f"`{self.path}` holds a run already", "choose another run directory, or resume the run")
        if resume == "auto" and has_checkpoints:
            return newest_in(self.folder, read, self._notify)
        if resume == "auto" and holds_a_run:
            self._notify(f"`{self.path}` holds a run without a checkpoint: it starts from the beginning")
        if resume in ("auto", "never"):
            return None
        named = read(checkpoint_folder(resume, self.folder), None)
        if holds_a_run and not self.owns(named):
            raise UsageError(
                f"`{self.path}` holds a run already, and `{resume}` is of another run",
                "choose a new run directory, with --fork",
            )
        return named

    def owns(self, checkpoint: Checkpoint) -> bool:
        """True for a checkpoint in this run directory; False for one of a run that this is forked from."""
        return checkpoint.path.resolve().parent == self.checkpoints.resolve()

    @property
    def resumable(self) -> str:
        """The name of the checkpoint to resume from: the newest with finite weights, else the newest; "" for none."""
        chosen = min(self._saved(), key=lambda each: bool(each.manifest.not_finite), default=None)
        return chosen.name if chosen is not None else ""

    def is_newest(self, checkpoint: Checkpoint) -> bool:
        """True if an automatic resume would choose this one."""
        return self.owns(checkpoint) and bool(self._on_rank_0(lambda: self.resumable == checkpoint.path.name))

    def cut_back_to(self, checkpoint: Checkpoint | None) -> list[dict[str, float]]:
        """Truncate metrics, counts and rankings to those of a checkpoint, or to nothing; returns the metrics."""
        # A fork is a new run, and begins without rows.
        owned = checkpoint if checkpoint is not None and self.owns(checkpoint) else None
        manifest = owned.manifest if owned is not None else Manifest()
        rows: list[dict[str, float]] = []

        def cut_back() -> str:
            self._newest = checkpoint_number(owned.path) if owned is not None else 0
            self._rankings = rankings_of(lineage_of(self._saved(), self._newest))
            rows.extend(self.metrics.numbers(manifest.metrics_bytes))  # first: what was changed is not cut
            self.metrics.cut(manifest.metrics_bytes)
            nodes_bytes = min(self.nodes.length(), manifest.nodes_bytes)
            if nodes_bytes < manifest.nodes_bytes:  # nothing depends on them
                self._notify(f"{self.folder / NODES_FILE} was shortened: earlier counts of nodes are missing")
            self.nodes.cut(nodes_bytes)
            return manifest.run or uuid.uuid4().hex

        self._run = self._on_rank_0(cut_back)
        if checkpoint is not None:
            self.latest = SavedCheckpoint(checkpoint.path, checkpoint.manifest)
        return rows if self.writes else self.metrics.numbers(manifest.metrics_bytes)

    def _saved(self) -> list[SavedCheckpoint]:
        """The existing checkpoints with a valid manifest, the newest first. Each manifest is read once."""
        manifests: dict[Path, Manifest] = {}
        for path in reversed(checkpoint_paths(self.checkpoints)):
            with suppress(CheckpointError):
                manifests[path] = self._manifests.get(path) or read_manifest(path)
        self._manifests = manifests
        return [SavedCheckpoint(*each) for each in manifests.items()]

    def append_start(self, start: Mapping[str, Any]) -> None:
        """Append a line to the list of starts: how and by which process the run was begun or resumed."""
        if not self.writes:
            return
        with suppress(FileNotFoundError):
            self._starts.cut((self.folder / STARTS_FILE).read_bytes().rfind(b"\n") + 1)  # a kill may have cut the last
        self._starts.append({"run": self._run, **start, **process_facts("started_at_unix_seconds")})
        self._starts_bytes = self._starts.length()
        self._starts.flush()  # else, after a power failure, rows could remain without the start that wrote them

    def setup_of(self, checkpoint: Checkpoint) -> dict[str, str]:
        """The hashes of what `setup` created in the run of a checkpoint, by path; empty if they are unknown."""
        starts = reversed(read_starts(checkpoint.path.parent.parent))
        return dict(next((start["setup"] for start in starts if "setup" in start), {}))

    # ---- running

    def with_lengths(self, facts: Manifest) -> Manifest:
        """Add the lengths of these files, and the run, to the manifest of a checkpoint.

        Raises:
            CheckpointError: the metrics recorded so far cannot be written.
        """
        self.count()
        return replace(facts, metrics_bytes=self.metrics.length(), nodes_bytes=self.nodes.length(), run=self._run)

    def new(
        self, facts: Manifest, retentions: Mapping[str, Retention], values: Mapping[str, float | None]
    ) -> SavedCheckpoint:
        """The path and the manifest of a checkpoint that will be written; may be called in any thread.

        Arguments:
            facts: the manifest without digest and checksums.
            values: metric by which checkpoints are ranked -> its value; None if there is none yet.
        """
        for file in (self.metrics, self.nodes):
            file.flush()  # first, so that the checkpoint counts only rows that are on the disk
        ranked_by = {node: [rule.best, rule.best_mode] for node, rule in retentions.items() if rule.best is not None}
        facts = replace(facts, ranked_by=ranked_by, follows=self._newest)
        self._replaced = [each for each in self._saved()[:1] if not self.keeps_newest and is_replaced(each, facts)]
        ranked = {metric: value for metric, value in values.items() if value is not None}
        for each in self._replaced:
            facts, ranked = replace(facts, follows=each.manifest.follows), {**each.manifest.ranked, **ranked}
        facts = replace(facts, ranked=ranked)
        number = max(map(checkpoint_number, checkpoint_paths(self.checkpoints)), default=0) + 1
        return SavedCheckpoint(self.checkpoints / f"{number:06d}-step-{facts.step}", facts)

    def keep(self, new: SavedCheckpoint, retentions: Mapping[str, Retention]) -> SavedCheckpoint:
        """Register a checkpoint that was written, and remove those that no rule keeps; may be called in any thread."""
        self._newest = new.number
        self.keeps_newest = False
        self._manifests[new.path] = new.manifest
        replaced = [each.path for each in self._replaced]
        saved = [each for each in self._saved() if each.path not in replaced]
        self._rankings = rankings_of(lineage_of(saved))
        # After the new one is on the disk, and one by one, so that those to be kept exist at any moment.
        for path in [*replaced, *[each.path for each in expired(saved, retentions, self._rankings)]]:
            removed = temporary_name(path)
            with suppress(OSError):
                # Renamed first: an interrupted removal must not leave half a checkpoint under a valid name.
                path.rename(removed)
                shutil.rmtree(removed) if removed.is_dir() else removed.unlink()
        return new

    def has_ranked(self, node: str) -> bool:
        """True if any checkpoint has a value of the metric by which this node ranks them."""
        return node in self._rankings and bool(self._rankings[node].values)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the status, with the newest and the best checkpoints.

        Raises:
            CheckpointError: it cannot be written.
        """
        if not self.writes or os.getpid() != self._process:
            return  # a process that user code has forked is not the run
        latest, best = self.latest, dict[str, Any]({BEST: None})
        for number, (node, ranking) in enumerate(self._rankings.items()):
            best[f"{BEST}:{node}" if number else BEST] = ranking.best
        newest = {"checkpoint": latest and latest.name, "digest": latest and latest.manifest.digest}
        write_status(self.folder, {**status, **newest, **best})
