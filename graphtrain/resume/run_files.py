"""What a run leaves on disk: checkpoints, metrics and status, kept in step with each other."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, final

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.resume.provenance import Provenance
from graphtrain.storage.checkpoint import Bytes, Checkpoint, read_checkpoint
from graphtrain.storage.lock import RunLock
from graphtrain.storage.retention import Retention
from graphtrain.storage.run_directory import METRICS_FILE, MetricsFile, RunDirectory, read_status
from graphtrain.storage.store import FolderStore, Store


class Written(NamedTuple):
    """A checkpoint on the disk, and which one is the best now: its name, the metric, the value."""

    path: Path
    digest: str
    best: dict[str, Any] | None


@final
class RunFiles:
    """The run directory of one trainer.

    Arguments:
        notify: told what a person should know.

    Attributes:
        latest: the newest checkpoint written or resumed from, and its digest.
        path: the run directory, as it was given.
    """

    def __init__(self, run_dir: str | Path, notify: Callable[[str], None]) -> None:
        self._directory = RunDirectory(run_dir)
        self._folder = FolderStore(self._directory.checkpoints, notify)
        self._store: Store = self._folder
        self._metrics = MetricsFile(self._directory.path / METRICS_FILE)
        self._lock = RunLock(self._directory.path, notify)
        self.path = Path(run_dir)
        self._notify = notify
        self._run = ""
        self._process = os.getpid()
        self._starts: int | None = None
        self._best: dict[str, Any] | None = None
        self.latest: tuple[Path, str] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """A span in which nobody else trains in the directory.

        Raises:
            UsageError: somebody does, or has since the last such span of this trainer.
        """
        self._lock.acquire()
        try:
            if self._starts is not None and self._directory.starts() != self._starts:
                raise UsageError(
                    f"the run in `{self.path}` was gone on with elsewhere since this trainer stood still",
                    "make a new Trainer, which goes on from where it is now",
                )
            yield
        finally:
            self._metrics.close()
            self._lock.release()

    def find(self, resume: str | Path) -> Checkpoint | None:
        """The checkpoint to go on from; None to begin.

        Raises:
            UsageError: "never", and the directory holds a run.
            CheckpointError: the checkpoint that was named is not sound.
        """
        self._folder.remove_leftovers()
        self._directory.remove_leftovers()
        if resume == "never":
            if self._directory.holds_a_run():
                raise UsageError(f"`{self.path}` holds a run already", "choose another run directory, or go on with it")
            return None
        if resume == "auto":
            newest = self._store.newest(self._why_incompatible())
            if newest is None and (there := len(self._folder.paths())):
                count = f"{there} checkpoints, none of which" if there > 1 else "a checkpoint; it"
                raise UsageError(
                    f"`{self.path}` holds {count} can{'' if there > 1 else 'not'} be gone on from",
                    "mend what is named above, fork from another run, or begin in another run directory",
                )
            if newest is None and self._directory.holds_a_run():
                self._notify(f"`{self.path}` holds no sound checkpoint: the run begins anew")
            return newest
        named = named_checkpoint(resume, self._directory.checkpoints)
        if self._directory.holds_a_run() and not self.is_own(named):
            raise UsageError(
                f"`{self.path}` holds a run already, and `{resume}` is of another", "fork into a new directory"
            )
        return named

    def is_own(self, checkpoint: Checkpoint) -> bool:
        """True for a checkpoint of this run, not of one that it is forked from."""
        return checkpoint.path.resolve().is_relative_to(self._directory.path.resolve())

    def _why_incompatible(self) -> Callable[[Mapping[str, Any]], str]:
        """A function that says why a checkpoint is not to be gone on from; empty if it is."""
        begun, recorded = self._directory.identities(), self._metrics.length()

        def why_incompatible(manifest: Mapping[str, Any]) -> str:
            if begun and manifest["run"] and manifest["run"] not in begun:
                return "it is of another run"
            if manifest["metrics_bytes"] > recorded:  # they were cut back to before it was made
                return "the run was gone on with from an earlier checkpoint"
            return ""

        return why_incompatible

    def is_newest(self, checkpoint: Checkpoint) -> bool:
        """True if a resume would choose this one by itself."""
        paths = self._folder.paths()
        return bool(paths) and paths[-1].resolve() == checkpoint.path.resolve()

    def go_on_from(self, checkpoint: Checkpoint | None) -> list[dict[str, float]]:
        """Cut the metrics back to where a checkpoint was made, or to nothing; the rows that stay."""
        own = checkpoint is not None and self.is_own(checkpoint)
        self._run = (own and checkpoint is not None and checkpoint.manifest["run"]) or uuid.uuid4().hex
        if checkpoint is None:
            return self._metrics.cut(0)
        best = self.last_status().get("best") if own else None
        self._best = best if isinstance(best, dict) else None
        self.latest = (checkpoint.path, checkpoint.manifest["digest"])
        return self._metrics.cut(checkpoint.manifest["metrics_bytes"] if own else 0)

    def started(self, origin: Provenance, start: Mapping[str, Any]) -> None:
        """Note that the run was begun or gone on with, and keep the source that was not committed."""
        if origin.difference:
            self._directory.keep_text(origin.difference_file, origin.difference)
        who = {"process": os.getpid(), "host": socket.gethostname(), "started_at_unix_seconds": round(time.time(), 3)}
        self._directory.add_start({"run": self._run, **start, **who})
        self._starts = self._directory.starts()

    def last_status(self) -> dict[str, Any]:
        """What the process before this one left as its status; empty if there is none, or none that can be read."""
        try:
            return read_status(self.path)
        except UsageError:
            return {}

    def row(self, metrics: Mapping[str, float], step: int) -> None:
        """A logger: the row goes to the metrics file."""
        self._metrics.append(metrics)

    def saving(
        self,
        files: Mapping[str, Bytes],
        manifest: Mapping[str, Any],
        digest: Callable[[Mapping[str, str]], str],
        retention: Retention,
        given_up: Event,
    ) -> Callable[[], Written]:
        """What writes a checkpoint, in whatever thread it is called.

        Arguments:
            files: the bytes of all files but the manifest.
            manifest: what it says beside the digest.
            digest: answers that, told the checksums of the files.
            given_up: once it is set, no checkpoint comes of it.

        Raises:
            CheckpointError: the disk does not take the metrics that were recorded so far.
        """
        whole = {**manifest, "metrics_bytes": self._metrics.length(), "run": self._run}

        def describe(checksums: Mapping[str, str]) -> Mapping[str, Any]:
            if given_up.is_set():
                raise CheckpointError("the checkpoint was given up")
            return {**whole, "digest": digest(checksums)}

        def save() -> Written:
            self._metrics.flush()  # first, so that no rows are counted that are not there
            path, written = self._store.save(files, describe, step=manifest["step"], retention=retention)
            best = self._store.best(retention)
            named = {"checkpoint": best[0].name, "metric": retention.best, "value": best[1]} if best else None
            return Written(path, written["digest"], named)

        return save

    def wrote(self, written: Written) -> None:
        """Note that a checkpoint is on the disk."""
        self.latest, self._best = (written.path, written.digest), written.best

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Leave the status for whoever looks from outside."""
        if os.getpid() != self._process:
            return  # a process that the user's code has forked is not the run
        path, digest = self.latest if self.latest is not None else (None, None)
        self._directory.write_status(
            {
                **status,
                "checkpoint": path.name if path is not None else None,
                "digest": digest,
                "best": self._best,
                "process": os.getpid(),
                "host": socket.gethostname(),
                "written_at_unix_seconds": round(time.time(), 3),
            }
        )


def named_checkpoint(name: str | Path, folder: Path | None = None) -> Checkpoint:
    """The checkpoint at a path, or of a name inside `folder`.

    Raises:
        UsageError: there is none.
        CheckpointError: it is not sound.
    """
    path = Path(name)
    if not path.is_dir() and folder is not None and (folder / path).is_dir():
        path = folder / path
    if not path.is_dir():
        there = (
            sorted(one.name for one in folder.iterdir() if not one.name.startswith(".")) if folder is not None else []
        )
        raise UsageError(f"there is no checkpoint `{name}`", f"there are: {', '.join(there)}" if there else "")
    return read_checkpoint(path)
