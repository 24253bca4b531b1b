"""The checkpoints of one run: numbered, the newest sound one found, the oldest removed."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

from graphtrain.errors import CheckpointError, LaterFormatError
from graphtrain.storage.checkpoint import Checkpoint, Manifest, read_checkpoint, read_manifest, write_checkpoint
from graphtrain.storage.manifest import checkpoint_number, checkpoint_paths
from graphtrain.storage.retention import Retention
from graphtrain.storage.state_files import StagedState


@final
class FolderStore:
    """Checkpoints as folders ``000003-step-120`` under one folder; the first number counts saves.

    Arguments:
        notify: receives a line for every checkpoint that is skipped.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self.folder = folder
        self._notify = notify
        self._unsound: set[Path] = set()
        # What is known of the metrics of each checkpoint.
        self._metrics: dict[Path, Mapping[str, float]] = {}

    def save(self, state: StagedState, facts: Manifest, retention: Retention) -> tuple[Path, Manifest]:
        """Write a checkpoint, then remove those that need not be kept; its path and its manifest.

        Arguments:
            facts: what the manifest holds beside digest and checksums.

        Raises:
            CheckpointError: it cannot be written, or was given up.
        """
        existing = self.paths()
        number = checkpoint_number(existing[-1]) + 1 if existing else 1
        path = self.folder / f"{number:06d}-step-{facts['step']}"
        manifest = write_checkpoint(path, state, facts)
        self._metrics[path] = manifest["metrics"]
        # Only now that it is on the disk; one after the other, so that at any moment all that should be kept is there.
        paths = self.paths()
        for old in retention.expired(paths, self._values(paths, retention.best), self._unsound):
            self._remove(old)
        return path, manifest

    def best(self, retention: Retention) -> tuple[Path, float] | None:
        """The best checkpoint, and its value of the metric; None if no checkpoint has one."""
        values = self._values(self.paths(), retention.best)
        ranked = retention.ranked(values)
        return (ranked[0], values[ranked[0]]) if ranked else None

    def _values(self, paths: list[Path], metric: str | None) -> dict[Path, float]:
        if metric is None:
            return {}
        for path in paths:
            if path not in self._metrics:
                try:
                    self._metrics[path] = read_manifest(path)["metrics"]
                except CheckpointError:
                    self._metrics[path] = {}
        return {path: self._metrics[path][metric] for path in paths if metric in self._metrics[path]}

    def newest(self, why_incompatible: Callable[[Manifest], str] = lambda manifest: "") -> Checkpoint | None:
        """The newest sound checkpoint that is compatible; others are reported and skipped.

        Arguments:
            why_incompatible: given a manifest, the reason why it is not; empty if it is. Default: all are.
        """
        for path in reversed(self.paths()):
            try:
                checkpoint = read_checkpoint(path)
                if not (reason := why_incompatible(checkpoint.manifest)):
                    return checkpoint
                self._notify(f"skipped {path}: {reason}")
            except LaterFormatError:
                raise
            except CheckpointError as error:
                if not isinstance(error.__cause__, OSError):  # one that cannot be read now may be tomorrow
                    self._unsound.add(path)
                self._notify(f"skipped a damaged checkpoint: {error.message}")
        return None

    def paths(self) -> list[Path]:
        """All checkpoints, oldest first, sound or not."""
        return checkpoint_paths(self.folder)

    def remove_leftovers(self) -> None:
        """Remove what an interrupted save or removal left behind."""
        if self.folder.is_dir():
            for leftover in self.folder.glob(".*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)

    def _remove(self, path: Path) -> None:
        # Renamed first: a removal cut short must not leave half a checkpoint under a valid name.
        expired = path.with_name(f".{path.name}.removed.tmp")
        with contextlib.suppress(OSError):
            path.rename(expired)
            shutil.rmtree(expired)
