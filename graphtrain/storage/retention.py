"""Which checkpoints of a run are kept: the newest ones, and those that are the best by a metric."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, final

from graphtrain.errors import CheckpointError
from graphtrain.storage.manifest import Manifest, checkpoint_number, checkpoint_paths, read_manifest
from graphtrain.storage.regular import readable_failure, replace_file, temporary_name
from graphtrain.storage.run_directory import BEST, BEST_FILE, CHECKPOINTS_FOLDER

T = TypeVar("T")


@dataclass(frozen=True)
class Retention:
    """Which checkpoints of a run a node keeps. Of several nodes, each keeps its own.

    Arguments:
        keep: how many of the newest are kept, at least 1. Default: 2.
        best: the metric by which the best are kept too. Default: only the newest are.
        best_mode: whether the smallest values are best, or the largest. Default: "min".
        keep_best: how many of the best are kept. Default: 1.
    """

    keep: int = 2
    best: str | None = None
    best_mode: Literal["min", "max"] = "min"
    keep_best: int = 1

    def is_among_best(self, value: float, others: Sequence[float]) -> bool:
        """True if a value is among the `keep_best` best, given the earlier values; NaN never is.

        >>> Retention(best="loss", keep_best=2).is_among_best(0.3, [0.2, 0.3])
        False
        """
        return len(others) in self.ranked(dict(enumerate([*others, value])))[: self.keep_best]

    def ranked(self, values: Mapping[T, float]) -> list[T]:
        """The names of values, best first; equal ones in their order. NaN is left out.

        >>> Retention(best="accuracy", best_mode="max").ranked({"a": 0.5, "b": 0.7, "c": 0.5})
        ['b', 'a', 'c']
        """
        numbers = {name: value for name, value in values.items() if not math.isnan(value)}
        return sorted(numbers, key=numbers.__getitem__, reverse=self.best_mode == "max")


class Ranking(NamedTuple):
    """The checkpoints with a value of the metric by which a node ranks them: name -> value, the best first."""

    metric: str
    mode: str
    values: Mapping[str, float]

    @property
    def name(self) -> str | None:
        """The name of the best checkpoint; None if there is none."""
        return next(iter(self.values), None)

    @property
    def best(self) -> dict[str, Any] | None:
        """The same with the metric and the value."""
        name = self.name
        return None if name is None else {"checkpoint": name, "metric": self.metric, "value": self.values[name]}


def rankings_of(
    manifests: Mapping[Path, Manifest], ranked_by: Mapping[str, Sequence[Any]], newest: float = math.inf
) -> dict[str, Ranking]:
    """The ranking of each node, by its path.

    Arguments:
        manifests: of the checkpoints of a run, oldest first.
        ranked_by: node -> metric and mode.
        newest: the number of the newest checkpoint that the run has not given up. Default: it has given up only those
            that a newer one does not follow.
    """
    lineage: dict[str, Manifest] = {}
    for path in reversed([*manifests]):
        if checkpoint_number(path) <= newest:
            lineage[path.name], newest = manifests[path], manifests[path].follows
    rankings = {}
    for node, (metric, mode) in ranked_by.items():
        values = {name: lineage[name].value_of(metric) for name in reversed(lineage)}
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        best_first = Retention(best_mode=mode).ranked(finite)
        rankings[node] = Ranking(metric, mode, {name: finite[name] for name in best_first})
    return rankings


def read_rankings(run_dir: Path) -> dict[str, Ranking]:
    """The ranking of each node of the run in a directory, by its path, the first node first."""
    manifests: dict[Path, Manifest] = {}
    for path in checkpoint_paths(run_dir / CHECKPOINTS_FOLDER):
        with suppress(CheckpointError):
            manifests[path] = read_manifest(path)
    return rankings_of(manifests, manifests[max(manifests)].ranked_by) if manifests else {}


def best_by_name(rankings: Mapping[str, Ranking]) -> dict[str, dict[str, Any] | None]:
    """The best checkpoint of each ranking, by its name in the run: ``best``; of further nodes ``best:NODE``."""
    names = [BEST, *(f"{BEST}:{node}" for node in [*rankings][1:])]
    return {BEST: None, **{name: ranking.best for name, ranking in zip(names, rankings.values(), strict=False)}}


def _write_rankings(file: Path, rankings: Mapping[str, Ranking]) -> None:
    """Write them for people and other programs, or remove the file if nothing is ranked.

    The table is the ranking of the first node, which has those of the others in it.
    """
    tables = {
        node: {
            "metric": ranking.metric,
            "mode": ranking.mode,
            "checkpoints": [{"checkpoint": name, "value": value} for name, value in ranking.values.items()],
        }
        for node, ranking in rankings.items()
    }
    with readable_failure(file):
        if not any(ranking.values for ranking in rankings.values()):
            file.unlink(missing_ok=True)
            return
        (node, first), *others = tables.items()
        table = {**first, "node": node, **({"others": dict(others)} if others else {})}
        replace_file(file, (json.dumps(table, indent=2) + "\n").encode(), flush=True)


@final
class CheckpointFolder:
    """The checkpoints of one run, as folders ``000003-step-120`` in one folder; the first number counts saves.

    Attributes:
        path: the folder.
        rankings: node -> the checkpoints with a value of its metric.
        damaged: those that could not be read, which are not counted as kept.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / CHECKPOINTS_FOLDER
        self.rankings: dict[str, Ranking] = {}
        self.damaged: set[Path] = set()
        self._best_file = run_dir / BEST_FILE
        self._facts: dict[Path, Manifest] = {}
        self._newest = 0  # the number of the last checkpoint that the run has come from

    def place(
        self,
        facts: Manifest,
        retentions: Mapping[str, Retention],
        values: Mapping[str, float | None],
        replaced: Path | None,
    ) -> tuple[Path, Manifest]:
        """The path of the next checkpoint, and its manifest with what ranks it.

        Arguments:
            values: of the metrics by which checkpoints are ranked, where they are known.
            replaced: the checkpoint that it replaces, whose values are used where there is none; None if none.
        """
        ranked_by = {node: [rule.best, rule.best_mode] for node, rule in retentions.items() if rule.best is not None}
        earlier = self.facts_of(replaced) if replaced is not None else None
        ranked = {
            metric: earlier.value_of(metric) if values.get(metric) is None and earlier else values.get(metric)
            for metric, _ in ranked_by.values()
        }
        number = max(map(checkpoint_number, checkpoint_paths(self.path)), default=0) + 1
        facts = replace(facts, ranked=ranked, ranked_by=ranked_by, follows=self._newest)
        return self.path / f"{number:06d}-step-{facts.step}", facts

    def keep(self, path: Path, manifest: Manifest, retentions: Mapping[str, Retention], replaced: Path | None) -> None:
        """Rank the checkpoints once one is written, and remove those that need not be kept.

        Of checkpoints with weights that are not finite, only the newest is kept, if there are others.
        """
        # Somebody may have removed the newest ones, so that their numbers are used again.
        self._facts[path], self._newest = _reduced(manifest), checkpoint_number(path)
        paths = [other for other in checkpoint_paths(self.path) if other != replaced]
        facts = {other: known for other in paths if (known := self.facts_of(other)) and other not in self.damaged}
        self.rankings = rankings_of(facts, manifest.ranked_by)
        finite = [other for other in facts if not facts[other].not_finite] or [*facts]
        kept = {path.name, *manifest.saved_by.values()}
        for node, rule in (retentions or {"": Retention()}).items():
            best = [*self.rankings[node].values] if node in self.rankings else []
            kept |= {*(other.name for other in finite[-rule.keep :]), *best[: rule.keep_best]}
        _write_rankings(self._best_file, self.rankings)
        # Only now that it is on the disk; one by one, so that everything that should be kept exists at any moment.
        for old in ([replaced] if replaced is not None else []) + [*self.damaged, *facts]:
            if old.name not in kept or old == replaced:
                self._remove(old)

    def resumed_from(self, path: Path | None, retentions: Mapping[str, Retention]) -> None:
        """Rank the checkpoints up to one; those after it are given up. None: the run starts from the beginning."""
        self._newest = checkpoint_number(path) if path is not None else 0
        facts = {other: known for other in checkpoint_paths(self.path) if (known := self.facts_of(other))}
        ranked_by = {node: [rule.best, rule.best_mode] for node, rule in retentions.items() if rule.best is not None}
        self.rankings = rankings_of(facts, ranked_by, self._newest)

    def facts_of(self, path: Path) -> Manifest | None:
        """The manifest of a checkpoint, reduced to what retention needs; None if it cannot be read."""
        if path not in self._facts:
            try:
                self._facts[path] = _reduced(read_manifest(path))
            except CheckpointError:
                return None
        return self._facts[path]

    def _remove(self, path: Path) -> None:
        # Renamed first: an interrupted removal must not leave half a checkpoint under a valid name.
        expired = temporary_name(path.with_name(f"{path.name}.removed"))
        with suppress(OSError):
            path.rename(expired)
            shutil.rmtree(expired)


def _reduced(manifest: Manifest) -> Manifest:
    """What retention needs of a manifest: there may be many."""
    names = ("ranked", "metrics", "not_finite", "saved_by", "follows")
    return Manifest(**{name: getattr(manifest, name) for name in names})
