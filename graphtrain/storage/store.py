"""The checkpoints of one run: writes, ranks and removes them, and finds the newest sound one."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, final

from graphtrain.errors import CheckpointError
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.manifest import (
    Manifest,
    checkpoint_number,
    checkpoint_paths,
    free_number,
    holds_a_checkpoint,
    own_checkpoint_paths,
    read_manifest,
)
from graphtrain.storage.named import newest_checkpoint
from graphtrain.storage.regular import temporary_name
from graphtrain.storage.run_directory import BEST_FILE, Ranking, Retention, write_rankings

Read = Callable[[Path, Manifest | None], Checkpoint]


class NewCheckpoint(NamedTuple):
    """A checkpoint that is not written yet.

    Attributes:
        facts: its manifest without digest and checksums.
        replaced: the checkpoint that it replaces, if it replaces one.
    """

    path: Path
    facts: Manifest
    replaced: Path | None


@final
class FolderStore:
    """Checkpoints as folders ``000003-step-120`` under one folder; the first number counts saves.

    Arguments:
        notify: receives a line for every checkpoint that is skipped.

    Attributes:
        rankings: node -> the checkpoints with a value of its metric, by the last retentions.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self.folder = folder
        self._notify = notify
        self._unsound: set[Path] = set()
        self._best_file = folder.parent / BEST_FILE
        self._facts: dict[Path, Manifest] = {}
        self._given_up: set[Path] = set()
        self.rankings: dict[str, Ranking] = {}

    def new(
        self,
        facts: Manifest,
        retentions: Mapping[str, Retention],
        values: Mapping[str, float | None],
        replaced: Path | None,
    ) -> NewCheckpoint:
        """The path of a checkpoint that will be written, and its facts with the values by which it is ranked.

        Arguments:
            facts: the manifest without digest and checksums.
            retentions: of each node that saves, by its path.
            values: of the metrics by which checkpoints are ranked, where they are known.
            replaced: the checkpoint that this one replaces, whose values are used where there is none.
        """
        path = self.folder / f"{free_number(self.folder):06d}-step-{facts.step}"
        metrics = [rule.best for rule in retentions.values() if rule.best is not None]
        earlier = {metric: self._value(replaced, metric) for metric in metrics if replaced is not None}
        known = {metric: value for metric, value in values.items() if value is not None}
        facts = replace(facts, ranked={**dict.fromkeys(metrics), **earlier, **known})
        if facts.not_finite and replaced is not None and not self.facts_of(replaced).not_finite:
            replaced, facts = None, replace(facts, replaces=0)
        return NewCheckpoint(path, facts, replaced)

    def keep(self, new: NewCheckpoint, manifest: Manifest, retentions: Mapping[str, Retention]) -> None:
        """Note that a checkpoint is written, and remove those that need not be kept."""
        # Somebody may have removed the newest ones, so that their numbers are used again.
        self._given_up.discard(new.path)
        self._facts[new.path] = _retention_facts(manifest)
        self._rank(retentions, new.replaced if new.replaced != new.path else None)

    def resumed_from(self, path: Path | None, retentions: Mapping[str, Retention]) -> None:
        """Restore the rankings up to a checkpoint; those made after it were given up, and are not ranked.

        Arguments:
            path: the checkpoint. None: the run starts from the beginning.
        """
        paths = self.own_paths()
        number = checkpoint_number(path) if path is not None else 0
        self._given_up = {other for other in paths if checkpoint_number(other) > number}
        self.rankings = self._ranked(paths, retentions)

    def _rank(self, retentions: Mapping[str, Retention], replaced: Path | None) -> None:
        """Rank the checkpoints, and remove those that need not be kept."""
        paths = [path for path in self.own_paths() if path != replaced]
        readable = [path for path in paths if path not in self._unsound]
        rules = [*retentions.values()] or [Retention()]
        most = max(rule.keep for rule in rules)
        not_finite = {path for path in readable if len(readable) > most and self.facts_of(path).not_finite}
        returned_to = self.facts_of(readable[-1]).saved_by.values() if readable else ()
        kept_by_none = set.intersection(
            *({*rule.expired(paths, self._values(paths, rule.best), self._unsound, not_finite)} for rule in rules)
        )
        expired = [path for path in paths if path in kept_by_none and path.name not in returned_to]
        rankings = self._ranked([path for path in paths if path not in expired], retentions)
        write_rankings(self._best_file, rankings)
        self.rankings = rankings
        # Only now that it is on the disk; one by one, so that everything that should be kept exists at any moment.
        if replaced is not None:
            self._remove(replaced)
        for old in expired:
            self._remove(old)

    def _ranked(self, paths: list[Path], retentions: Mapping[str, Retention]) -> dict[str, Ranking]:
        rankings = {}
        for node, rule in retentions.items():
            if rule.best is not None:
                values = self._values(paths, rule.best)
                ranked = {path.name: values[path] for path in rule.ranked(values)}
                rankings[node] = Ranking(rule.best, rule.best_mode, ranked)
        return rankings

    def _values(self, paths: list[Path], metric: str | None) -> dict[Path, float]:
        """The value of the metric for each checkpoint that has one."""
        if metric is None:
            return {}
        ours = [path for path in paths if path not in self._given_up and path not in self._unsound]
        values = {path: self._value(path, metric) for path in ours}
        return {path: value for path, value in values.items() if value is not None and math.isfinite(value)}

    def _value(self, path: Path, metric: str) -> float | None:
        facts = self.facts_of(path)
        # `metrics` if other ones were ranked when it was saved.
        return facts.ranked[metric] if metric in facts.ranked else facts.metrics.get(metric)

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
    return Manifest(**{name: getattr(manifest, name) for name in ("ranked", "metrics", "not_finite", "saved_by")})
