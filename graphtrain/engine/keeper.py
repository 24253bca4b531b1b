"""What a run leaves on disk: checkpoints, metrics and status, kept in step with each other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from graphtrain.engine.origin import Origin
from graphtrain.errors import UsageError
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.run_directory import METRICS_FILE, MetricsFile, RunDirectory, read_status
from graphtrain.storage.store import FolderStore, Store


@final
class Keeper:
    """The run directory of one trainer.

    Arguments:
        say: told what a person should know.

    Attributes:
        latest: the newest checkpoint written or resumed from, and its digest.
    """

    def __init__(self, run_dir: str | Path, say: Callable[[str], None]) -> None:
        self._directory = RunDirectory(run_dir)
        self._folder = FolderStore(self._directory.checkpoints, say)
        self._store: Store = self._folder
        self._metrics = MetricsFile(self._directory.path / METRICS_FILE)
        self._say = say
        self.latest: tuple[Path, str] | None = None

    def find(self, resume: str | Path) -> Checkpoint | None:
        """The checkpoint to go on from; None to begin.

        Raises:
            UsageError: "never", and the directory holds a run.
            CheckpointError: the checkpoint that was named is not sound.
        """
        self._folder.remove_leftovers()
        if resume == "never":
            if self._directory.holds_a_run():
                where = self._directory.path
                raise UsageError(f"`{where}` holds a run already", "choose another run directory, or go on with it")
            return None
        if resume == "auto":
            newest = self._store.newest(self._fits)
            if newest is None and self._directory.holds_a_run():
                self._say(f"`{self._directory.path}` holds no sound checkpoint: the run begins anew")
            return newest
        named = named_checkpoint(resume, self._directory.checkpoints)
        if self._directory.holds_a_run() and not self.is_own(named):
            where = self._directory.path
            raise UsageError(
                f"`{where}` holds a run already, and `{resume}` is of another", "fork into a new directory"
            )
        return named

    def is_own(self, checkpoint: Checkpoint) -> bool:
        """True for a checkpoint of this run, not of one that it is forked from."""
        return checkpoint.path.resolve().is_relative_to(self._directory.path.resolve())

    def _fits(self, manifest: Mapping[str, Any]) -> bool:
        """False for a checkpoint of a line that was given up: the metrics were cut back to before it was made."""
        return bool(manifest["metrics_bytes"] <= self._metrics.flush())

    def is_newest(self, checkpoint: Checkpoint) -> bool:
        """True if a resume would choose this one by itself."""
        paths = self._folder.paths()
        return bool(paths) and paths[-1].resolve() == checkpoint.path.resolve()

    def go_on_from(self, checkpoint: Checkpoint | None) -> list[dict[str, float]]:
        """Cut the metrics back to where a checkpoint was made, or to nothing; the rows that stay."""
        if checkpoint is None:
            return self._metrics.cut(0)
        self.latest = (checkpoint.path, checkpoint.manifest["digest"])
        return self._metrics.cut(checkpoint.manifest["metrics_bytes"] if self.is_own(checkpoint) else 0)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._directory.path

    def started(self, origin: Origin, start: Mapping[str, Any]) -> None:
        """Note that the run was begun or gone on with, and keep the source that was not committed."""
        if origin.difference:
            self._directory.keep_text(origin.difference_file, origin.difference)
        who = {"process": os.getpid(), "host": socket.gethostname(), "started_at_unix_seconds": round(time.time(), 3)}
        self._directory.add_start({**start, **who})

    def last_status(self) -> dict[str, Any]:
        """What the process before this one left as its status; empty if there is none, or none that can be read."""
        try:
            return read_status(self.path)
        except UsageError:
            return {}

    def row(self, metrics: Mapping[str, float], step: int) -> None:
        """A logger: the row goes to the metrics file."""
        self._metrics.append(metrics)

    def save(self, tree: Mapping[str, Mapping[str, Any]], manifest: Mapping[str, Any], keep: int) -> Path:
        """Write a checkpoint; metrics reach the disk first, so that none are counted that are not there."""
        whole = {**manifest, "metrics_bytes": self._metrics.flush()}
        path = self._store.save(tree, whole, step=manifest["step"], keep=keep)
        self.latest = (path, manifest["digest"])
        return path

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Leave the status for whoever looks from outside."""
        path, digest = self.latest if self.latest is not None else (None, None)
        self._directory.write_status(
            {
                **status,
                "checkpoint": path.name if path is not None else None,
                "digest": digest,
                "process": os.getpid(),
                "host": socket.gethostname(),
                "written_at_unix_seconds": round(time.time(), 3),
            }
        )

    def close(self) -> None:
        """Let go of the metrics file; a later row opens it again."""
        self._metrics.close()


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
