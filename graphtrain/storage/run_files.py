"""The files of a run: checkpoints, metrics and status, kept consistent with each other."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, final

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.plain import json_value
from graphtrain.storage import retention
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.lock import locked
from graphtrain.storage.manifest import Manifest, checkpoint_number, checkpoint_paths, read_manifest
from graphtrain.storage.named import existing_checkpoint, newest_in
from graphtrain.storage.regular import readable_failure, remove_leftovers, replace_file, temporary_name
from graphtrain.storage.retention import Ranking, Retention, kept_of, manifests_in, rankings_of
from graphtrain.storage.run_directory import (
    BEST_FILE,
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    NODES_FILE,
    STARTS_FILE,
    STATUS_FILE,
    RowsFile,
    has_begun,
    read_starts,
    read_status,
)

Lead = Callable[[Callable[[], Any]], Any]
"""Makes a call on rank 0, and returns its result on all ranks."""


def _call(act: Callable[[], Any]) -> Any:
    return act()


class NewCheckpoint(NamedTuple):
    """A checkpoint that is not written yet.

    Attributes:
        facts: its manifest without digest and checksums.
        replaced: the checkpoint that it replaces, if it replaces one.
    """

    path: Path
    facts: Manifest
    replaced: Path | None


class Written(NamedTuple):
    """A checkpoint on the disk."""

    path: Path
    manifest: Manifest


@final
class RunFiles:
    """The run directory of one trainer.

    With several ranks, rank 0 writes all files, except for what is each rank's own in a checkpoint. On the other ranks,
    methods that write do nothing. What rank 0 finds on the disk is sent to all ranks, and its errors are raised on all.

    Arguments:
        notify: receives messages for the user, one line each.
        lead: makes a call on rank 0 and returns its result, plain data, on all ranks. Default: one process.
        writes: False on the other ranks. Default: True.

    Raises:
        UsageError: the directory cannot be created or written.

    Attributes:
        latest: the newest checkpoint, written or resumed from, and its digest.
        path: the run directory, as given; `folder` is its absolute path, and `checkpoints` that of its checkpoints.
        count: called when a checkpoint is taken, to append the counts so far. Default: there are none.
    """

    def __init__(
        self, run_dir: str | Path, notify: Callable[[str], None], *, lead: Lead = _call, writes: bool = True
    ) -> None:
        self.path = Path(run_dir)
        self._lead, self.writes = lead, writes
        self.folder = self.path.absolute()  # the current folder may change
        self.checkpoints = self.folder / CHECKPOINTS_FOLDER
        self._metrics, self._nodes = RowsFile(self.folder / METRICS_FILE), RowsFile(self.folder / NODES_FILE)
        self.count: Callable[[], None] = lambda: None
        self._notify = notify
        self._run = ""
        self._process = os.getpid()
        self._starts: int | None = None
        self._is_not_finite = False  # weights in the newest checkpoint
        self._rankings: dict[str, Ranking] = {}
        self._damaged: set[Path] = set()  # checkpoints, which are not counted as kept
        self._newest = 0  # the number of the checkpoint that the run has come from
        self.latest: tuple[Path, str] | None = None
        lead(self._prepare)

    def _prepare(self) -> None:
        """Create the folders, and check that they can be written."""
        if str(self.folder).encode("utf-8", "replace") != os.fsencode(self.folder):  # safetensors could not read it
            raise UsageError(f"the path of `{self.path}` is not UTF-8", "choose a run directory whose path is")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            probe = temporary_name(self.folder / "probe")
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UsageError(
                f"the run directory `{self.path}` cannot be written: {error.strerror}",
                "make it writable, or choose another run directory",
            ) from None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, so that no other process trains in the directory.

        Raises:
            UsageError: another one does, or has done since this trainer last held it.
        """
        with ExitStack() as stack:

            def lock() -> None:
                stack.enter_context(locked(self.folder, self._notify))
                if self._starts not in (None, self._bytes_of_starts()):
                    raise UsageError(
                        f"the run in `{self.path}` was resumed elsewhere since this trainer stopped",
                        "make a new Trainer, which resumes the run as it is now",
                    )

            self._lead(lock)
            yield

    # ---- starting

    def find(self, resume: str | Path, read: Callable[[Path, Manifest | None], Checkpoint]) -> Checkpoint | None:
        """The checkpoint to resume from; None to start from the beginning. Called on rank 0 only.

        Arguments:
            read: reads a checkpoint, given its manifest if that is known.

        Raises:
            UsageError: "never", and the directory holds a run.
            CheckpointError: the named checkpoint is not sound.
        """
        remove_leftovers(self.folder)
        remove_leftovers(self.checkpoints)
        holds_a_run = bool(checkpoint_paths(self.checkpoints)) or has_begun(self.folder)
        if not (holds_a_run or read_starts(self.folder)) and (self.folder / METRICS_FILE).exists():
            raise UsageError(
                f"`{METRICS_FILE}` in `{self.path}` was not written by a run",
                "choose another run directory, or move that file",
            )
        if resume == "never":
            if holds_a_run:
                raise UsageError(
                    f"`{self.path}` holds a run already", "choose another run directory, or resume the run"
                )
            return None
        if resume == "auto":
            if checkpoint_paths(self.checkpoints):
                return newest_in(self.folder, read, self._notify, self._why_not, self._damaged.add)
            if holds_a_run:
                self._notify(f"`{self.path}` holds no sound checkpoint: the run starts from the beginning")
            return None
        named = read(existing_checkpoint(resume, self.checkpoints), None)
        if holds_a_run and not self.owns(named):
            raise UsageError(
                f"`{self.path}` holds a run already, and `{resume}` is of another", "fork into a new directory"
            )
        return named

    def owns(self, checkpoint: Checkpoint) -> bool:
        """True for a checkpoint of this run, not of one that it is forked from."""
        return checkpoint.path.resolve().parent == self.checkpoints.resolve()

    def _why_not(self, manifest: Manifest) -> str:
        """Why a checkpoint must not be resumed from automatically; empty if it may be."""
        begun = {start.get("run") for start in read_starts(self.folder)}
        if begun and manifest.run and manifest.run not in begun:
            return "it is of another run"
        if manifest.metrics_bytes > self._metrics.length():  # truncated to an earlier checkpoint
            return "the run was resumed from an earlier checkpoint"
        return ""

    @property
    def resumable(self) -> Path | None:
        """The newest checkpoint whose weights are finite, or of all if there is none."""
        manifests = manifests_in(self.checkpoints)
        finite = [path for path in manifests if not manifests[path].not_finite]
        return next(iter((finite or [*manifests])[-1:]), None)

    def is_newest(self, checkpoint: Checkpoint) -> bool:
        """True if an automatic resume would choose this one."""

        def is_newest() -> bool:
            newest = self.resumable
            return newest is not None and newest.resolve() == checkpoint.path.resolve()

        return bool(self._lead(is_newest))

    def cut_back_to(self, checkpoint: Checkpoint | None, retentions: Mapping[str, Retention]) -> list[dict[str, float]]:
        """Truncate the metrics, the counts and the rankings to those of a checkpoint, or to nothing.

        Returns:
            The rows that remain.
        """
        # A fork is another run, and begins without rows.
        own = checkpoint if checkpoint is not None and self.owns(checkpoint) else None
        manifest = own.manifest if own is not None else Manifest()
        rows: list[dict[str, float]] = []

        def cut_back() -> str:
            self._newest = checkpoint_number(own.path) if own is not None else 0
            self._rankings = rankings_of(manifests_in(self.checkpoints), _ranked_by(retentions), self._newest)
            rows.extend(self._metrics.numbers(manifest.metrics_bytes))  # first: what was changed is not cut
            self._metrics.cut(manifest.metrics_bytes)
            try:
                self._nodes.cut(manifest.nodes_bytes)
            except UsageError:  # nothing depends on them
                self._nodes.cut(0)
                self._notify(f"{self.folder / NODES_FILE} is not what it was: nodes are counted from here on")
            return manifest.run or uuid.uuid4().hex

        self._run = self._lead(cut_back)
        if checkpoint is not None:
            self.latest = (checkpoint.path, checkpoint.manifest.digest)
        return rows if self.writes else self._metrics.numbers(manifest.metrics_bytes)

    def started(self, start: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        """Add a line to the list of starts.

        Arguments:
            start: how the run was begun or resumed, and by what.
            texts: file name -> content to keep next to the list, such as source that was not committed.
        """
        if not self.writes:
            return
        for name, text in texts.items():
            with readable_failure(self.folder / name):
                replace_file(self.folder / name, text.encode("utf-8", "backslashreplace"))
        target = self.folder / STARTS_FILE
        line = json.dumps(json_value({"run": self._run, **start, **_process("started_at_unix_seconds")}), default=str)
        is_torn = target.exists() and not target.read_bytes().endswith(b"\n")  # by a kill
        with readable_failure(target), target.open("ab") as file:
            file.write(b"\n" * is_torn + line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())  # without it, rows that survive a loss of power would be those of another program
        self._starts = self._bytes_of_starts()

    def setup_of(self, checkpoint: Checkpoint) -> dict[str, str]:
        """The hashes of what was set up in the run of a checkpoint; empty if they are unknown."""
        starts = reversed(read_starts(checkpoint.path.parent.parent))
        return dict(next((start["setup"] for start in starts if "setup" in start), {}))

    def _bytes_of_starts(self) -> int:
        """The size of the list of starts, which grows whenever a process begins or resumes the run."""
        file = self.folder / STARTS_FILE
        return file.stat().st_size if file.exists() else 0

    def last_status(self) -> dict[str, Any]:
        """The status that the previous process left; empty if there is none, or it cannot be read."""
        try:
            return read_status(self.path)
        except UsageError:
            return {}

    # ---- running

    def row(self, metrics: Mapping[str, float], step: int) -> None:
        """A logger that appends a row to the metrics file."""
        if self.writes:
            self._metrics.append(metrics)

    def append_counts(self, *rows: Mapping[str, Any]) -> None:
        """Append rows to the file of counts."""
        if self.writes:
            self._nodes.append(*rows)

    def noted(self, facts: Manifest) -> Manifest:
        """Add what a checkpoint made now has to know about these files.

        Raises:
            CheckpointError: the disk refuses the metrics that were recorded so far.
        """
        self.count()
        return replace(facts, metrics_bytes=self._metrics.length(), nodes_bytes=self._nodes.length(), run=self._run)

    def new(
        self,
        facts: Manifest,
        retentions: Mapping[str, Retention],
        values: Mapping[str, float | None],
        replaced: Path | None,
    ) -> NewCheckpoint:
        """A checkpoint that will be written; may be called in any thread.

        Arguments:
            facts: the manifest without digest and checksums.
            retentions: of each node that saves, by its path.
            values: of the metrics by which checkpoints are ranked, where they are known.
            replaced: the checkpoint that this one replaces, whose values are used where there is none.
        """
        for file in (self._metrics, self._nodes):
            file.flush()  # first, so that the checkpoint counts only rows that are on the disk
        ranked_by, before = _ranked_by(retentions), None
        with suppress(CheckpointError):
            before = read_manifest(replaced) if replaced is not None else None
        if facts.not_finite and before is not None and not before.not_finite:
            replaced = before = None
        earlier = before.value_of if before is not None else lambda metric: None
        ranked = {
            metric: earlier(metric) if values.get(metric) is None else values[metric]
            for metric, _ in ranked_by.values()
        }
        follows = before.follows if before is not None else self._newest
        facts = replace(facts, ranked=ranked, ranked_by=ranked_by, follows=follows)
        number = max(map(checkpoint_number, checkpoint_paths(self.checkpoints)), default=0) + 1
        return NewCheckpoint(self.checkpoints / f"{number:06d}-step-{facts.step}", facts, replaced)

    def keep(self, new: NewCheckpoint, manifest: Manifest, retentions: Mapping[str, Retention]) -> Written:
        """Keep a checkpoint that is written, and remove those that need not be kept; may be called in any thread."""
        self._newest = checkpoint_number(new.path)
        self._damaged.discard(new.path)  # somebody has removed the newest, so that numbers are used again
        replaced = [new.replaced] if new.replaced not in (None, new.path) else []
        others = {*self._damaged, *replaced}
        manifests = {path: known for path, known in manifests_in(self.checkpoints).items() if path not in others}
        self._rankings = rankings_of(manifests)
        retention.write_rankings(self.folder / BEST_FILE, self._rankings)
        kept = kept_of(manifests, retentions, self._rankings)
        # Only now that it is on the disk; one by one, so that everything that should be kept exists at any moment.
        for path in [*replaced, *(path for path in [*self._damaged, *manifests] if path.name not in kept)]:
            _remove(path)
        return Written(new.path, manifest)

    def saved(self, written: Written) -> None:
        """Note that a checkpoint is on the disk."""
        self.latest = (written.path, written.manifest.digest)
        if (weight := written.manifest.not_finite) and not self._is_not_finite:
            kept = "checkpoints with finite weights are kept, whatever `keep` is, and a resume uses the newest of them"
            self._notify(f"{written.path.name}: `{weight}` is not finite; {kept}")
        self._is_not_finite = bool(weight)

    def has_ranked(self, node: str) -> bool:
        """True if a checkpoint has a value of the metric by which a node ranks them."""
        return node in self._rankings and self._rankings[node].best is not None

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Replace the status file, which other processes read, atomically."""
        if not self.writes or os.getpid() != self._process:
            return  # a process that was forked by the user's code is not the run
        path, digest = self.latest if self.latest is not None else (None, None)
        name = path.name if path is not None else None
        checkpoint = {"checkpoint": name, "digest": digest, **retention.best_by_name(self._rankings)}
        _replace_status(self.folder, {**status, **checkpoint})


def _ranked_by(retentions: Mapping[str, Retention]) -> dict[str, Sequence[str]]:
    """Node -> the metric by which it ranks checkpoints, and the mode."""
    return {node: [rule.best, rule.best_mode] for node, rule in retentions.items() if rule.best is not None}


def _remove(path: Path) -> None:
    # Renamed first: an interrupted removal must not leave half a checkpoint under a valid name.
    expired = temporary_name(path.with_name(f"{path.name}.removed"))
    with suppress(OSError):
        path.rename(expired)
        shutil.rmtree(expired) if expired.is_dir() else expired.unlink()


def write_start(run_dir: Path, status: Mapping[str, Any]) -> None:
    """Write the status of a run that has not begun, unless the directory has that of one that did.

    Arguments:
        status: its `state`, and what else is known.

    Raises:
        CheckpointError: the disk refuses.
    """
    if not has_begun(run_dir):
        with readable_failure(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
        _replace_status(run_dir, {"position": "", **status})


def _replace_status(folder: Path, status: Mapping[str, Any]) -> None:
    plain = json_value({**status, **_process("written_at_unix_seconds")})
    lines = (f"  {json.dumps(name)}: {json.dumps(value, default=str)}" for name, value in plain.items())
    target = folder / STATUS_FILE
    with readable_failure(target):  # with `indent`, it takes five times as long
        replace_file(target, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def _process(time_field: str) -> dict[str, Any]:
    return {"process": os.getpid(), "host": socket.gethostname(), time_field: round(time.time(), 3)}
