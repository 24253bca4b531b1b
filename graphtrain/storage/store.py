"""The checkpoints of one run: writes, ranks and removes them, and finds the newest sound one."""

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
        ranking: the checkpoints with a value of the metric of the last `Retention`, best first.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self.folder = folder
        self._notify = notify
        self._unsound: set[Path] = set()
        self._best_file = folder.parent / BEST_FILE
        self._facts: dict[Path, Manifest] = {}
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
        """Write a checkpoint, then remove those that need not be kept; returns its path and its manifest.

        Arguments:
            facts: the manifest without digest and checksums.
            value: of the metric by which checkpoints are ranked. Default: none.
            replaced: the checkpoint that this one replaces, whose value is used if there is no other. Default: none.
            write: writes the folder. Default: this process writes all of it.

        Raises:
            CheckpointError: it cannot be written, or was given up.
        """
        path = self.folder / f"{free_number(self.folder):06d}-step-{facts.step}"
        if retention.best is not None:
            if value is None and replaced is not None:
                value = self._value(replaced, retention.best)
            facts = replace(facts, best={"metric": retention.best, "value": value})
        if weight := state.weight_that_is_not_finite:
            facts = replace(facts, not_finite=weight)
            if replaced is not None and not self.facts_of(replaced).not_finite:
                replaced, facts = None, replace(facts, replaces=0)
        manifest = write(path, state, facts)
        # Somebody may have removed the newest ones, so that their numbers are used again.
        self._given_up.discard(path)
        self._facts[path] = _retention_facts(manifest)
        self._keep(retention, replaced if replaced != path else None)
        return path, manifest

    def resumed_from(self, path: Path | None, retention: Retention) -> None:
        """Restore the ranking up to a checkpoint; those made after it were given up, and are not ranked.

        Arguments:
            path: the checkpoint. None: the run starts from the beginning.
        """
        paths = self.own_paths()
        number = checkpoint_number(path) if path is not None else 0
        self._given_up = {other for other in paths if checkpoint_number(other) > number}
        self.ranking = self._ranked(paths, retention)

    def _keep(self, retention: Retention, replaced: Path | None = None) -> None:
        """Rank the checkpoints, and remove those that need not be kept."""
        paths = [path for path in self.own_paths() if path != replaced]
        readable = [path for path in paths if path not in self._unsound]
        not_finite = {path for path in readable if len(readable) > retention.keep and self.facts_of(path).not_finite}
        returned_to = names_kept(self.facts_of(readable[-1])) if readable else []
        expired = [
            path
            for path in retention.expired(paths, self._values(paths, retention.best), self._unsound, not_finite)
            if path.name not in returned_to
        ]
        ranking = self._ranked([path for path in paths if path not in expired], retention)
        ranking.write(self._best_file)
        self.ranking = ranking
        # Only now that it is on the disk; one by one, so that everything that should be kept exists at any moment.
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
        facts = self.facts_of(path)
        value: float | None = facts.metrics.get(metric)  # if another metric was ranked when it was saved
        if facts.best.get("metric") == metric:
            value = facts.best.get("value")
        return value

    def facts_of(self, path: Path) -> Manifest:
        """The manifest of a checkpoint, reduced to what retention needs; empty if it cannot be read."""
        if path not in self._facts:
            try:
                self._facts[path] = _retention_facts(read_manifest(path))
            except CheckpointError:
                self._facts[path] = Manifest()
        return self._facts[path]

    def newest(
        self,
        why_incompatible: Callable[[Manifest], str] = lambda manifest: "",
        read: Read = read_checkpoint,
    ) -> Checkpoint | None:
        """The newest sound and compatible checkpoint with finite weights; those that are skipped are reported.

        If no such checkpoint can be read, the newest one whose weights are not finite.

        Arguments:
            why_incompatible: given a manifest, the reason to skip it; empty if there is none. Default: none is skipped.
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
        # Renamed first: an interrupted removal must not leave half a checkpoint under a valid name.
        expired = temporary_name(path.with_name(f"{path.name}.removed"))
        with contextlib.suppress(OSError):
            path.rename(expired)
            shutil.rmtree(expired)


def _retention_facts(manifest: Manifest) -> Manifest:
    """A manifest reduced to what retention needs, since there may be many."""
    return Manifest(**{name: getattr(manifest, name) for name in ("best", "metrics", "not_finite", "saved_by")})
