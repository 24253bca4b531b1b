"""The checkpoints of one run: numbered, the newest sound one found, the oldest removed."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import final

from graphtrain.errors import CheckpointError
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from graphtrain.storage.manifest import (
    Manifest,
    checkpoint_number,
    checkpoint_paths,
    free_number,
    holds_a_checkpoint,
    names_kept,
    own_checkpoint_paths,
    read_manifest,
)
from graphtrain.storage.named import newest_checkpoint
from graphtrain.storage.regular import temporary_name
from graphtrain.storage.run_directory import BEST_FILE, Ranking, Retention
from graphtrain.storage.state_files import StagedState

Read = Callable[[Path, Manifest | None], Checkpoint]


@final
class FolderStore:
    """Checkpoints as folders ``000003-step-120`` under one folder; the first number counts saves.

    Arguments:
        notify: receives a line for every checkpoint that is skipped.

    Attributes:
        ranking: those that have a value of the metric of the last `Retention`, the best first.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self.folder = folder
        self._notify = notify
        self._unsound: set[Path] = set()
        self._best_file = folder.parent / BEST_FILE
        self._of_manifests: dict[Path, Manifest] = {}  # what they tell of metrics and weights
        self._given_up: set[Path] = set()
        self.ranking = Ranking()

    def save(
        self,
        state: StagedState,
        facts: Manifest,
        retention: Retention,
        value: float | None = None,
        replaced: Path | None = None,
        write: Callable[[Path, StagedState, Manifest], Manifest] = write_checkpoint,
    ) -> tuple[Path, Manifest]:
        """Write a checkpoint, then remove those that need not be kept; its path and its manifest.

        Arguments:
            facts: the manifest without digest and checksums.
            value: of the metric by which checkpoints are ranked. Default: it has none.
            replaced: a checkpoint in whose place this one comes, with its value if there is no other. Default: none.
            write: writes the folder. Default: this process writes all of it.

        Raises:
            CheckpointError: it cannot be written, or was given up.
        """
        path = self.folder / f"{free_number(self.folder):06d}-step-{facts.step}"
        if retention.best is not None:
            if value is None and replaced is not None:
                value = self._value(replaced, retention.best)
            facts = replace(facts, best={"metric": retention.best, "value": value})
        if weight := state.weight_that_is_not_finite():
            facts = replace(facts, not_finite=weight)
            if replaced is not None and not self.told(replaced).not_finite:
                replaced, facts = None, replace(facts, replaces=0)
        manifest = write(path, state, facts)
        # Somebody may have removed the newest ones, and this one have a number of theirs.
        self._given_up.discard(path)
        self._of_manifests[path] = _of_manifest(manifest)
        self._keep(retention, replaced if replaced != path else None)
        return path, manifest

    def resumed_from(self, path: Path | None, retention: Retention) -> None:
        """Take over what was ranked up to a checkpoint; what was made after it was given up, and is not ranked.

        Arguments:
            path: of the checkpoint. None: the run begins, and nothing was ranked.
        """
        paths = self.own_paths()
        number = checkpoint_number(path) if path is not None else 0
        self._given_up = {other for other in paths if checkpoint_number(other) > number}
        self.ranking = self._ranked(paths, retention)

    def _keep(self, retention: Retention, replaced: Path | None = None) -> None:
        """Rank the checkpoints, and remove those that need not be kept."""
        paths = [path for path in self.own_paths() if path != replaced]
        readable = [path for path in paths if path not in self._unsound]
        not_finite = {path for path in readable if len(readable) > retention.keep and self.told(path).not_finite}
        returned_to = names_kept(self.told(readable[-1])) if readable else []
        expired = [
            path
            for path in retention.expired(paths, self._values(paths, retention.best), self._unsound, not_finite)
            if path.name not in returned_to
        ]
        ranking = self._ranked([path for path in paths if path not in expired], retention)
        ranking.write(self._best_file)
        self.ranking = ranking
        # Only now that it is on the disk; one after the other, so that at any moment all that should be kept is there.
        if replaced is not None:
            self._remove(replaced)
        for old in expired:
            self._remove(old)

    def _ranked(self, paths: list[Path], retention: Retention) -> Ranking:
        values = self._values(paths, retention.best)
        ranked = {path.name: values[path] for path in retention.ranked(values)}
        return Ranking(retention.best or "", retention.best_mode, ranked)

    def _values(self, paths: list[Path], metric: str | None) -> dict[Path, float]:
        """The value of the metric for each checkpoint that has one."""
        if metric is None:
            return {}
        ours = [path for path in paths if path not in self._given_up and path not in self._unsound]
        values = {path: self._value(path, metric) for path in ours}
        return {path: value for path, value in values.items() if value is not None and math.isfinite(value)}

    def _value(self, path: Path, metric: str) -> float | None:
        told = self.told(path)
        # Without `best` it is of a time when another metric was ranked.
        value: float | None = told.best.get("value") if told.best.get("metric") == metric else told.metrics.get(metric)
        return value

    def told(self, path: Path) -> Manifest:
        """The manifest of a checkpoint, with only what retention needs of it; empty where it cannot be read."""
        if path not in self._of_manifests:
            try:
                self._of_manifests[path] = _of_manifest(read_manifest(path))
            except CheckpointError:
                self._of_manifests[path] = Manifest()
        return self._of_manifests[path]

    def newest(
        self,
        why_incompatible: Callable[[Manifest], str] = lambda manifest: "",
        read: Read = read_checkpoint,
    ) -> Checkpoint | None:
        """The newest sound checkpoint that is compatible, of those with finite weights; what is skipped is reported.

        Where no other can be read, it is the newest of those whose weights are not finite.

        Arguments:
            why_incompatible: given a manifest, the reason why it is not; empty if it is. Default: all are.
            read: reads a checkpoint, given its manifest. Default: as one process does.
        """
        return newest_checkpoint(
            self.folder,
            read,
            self._notify,
            finite_first=True,
            why_incompatible=why_incompatible,
            damaged=self._unsound.add,
        )

    def paths(self) -> list[Path]:
        """All checkpoints, oldest first, sound or not."""
        return checkpoint_paths(self.folder)

    def own_paths(self) -> list[Path]:
        """The same without folders that hold no manifest."""
        return own_checkpoint_paths(self.folder)

    def _remove(self, path: Path) -> None:
        if not holds_a_checkpoint(path):
            return
        # Renamed first: a removal cut short must not leave half a checkpoint under a valid name.
        expired = temporary_name(path.with_name(f"{path.name}.removed"))
        with contextlib.suppress(OSError):
            path.rename(expired)
            shutil.rmtree(expired)


def _of_manifest(manifest: Manifest) -> Manifest:
    """What a manifest tells for retention: of metrics, of a weight that is not finite, and of the way back."""
    return Manifest(**{name: getattr(manifest, name) for name in ("best", "metrics", "not_finite", "saved_by")})
