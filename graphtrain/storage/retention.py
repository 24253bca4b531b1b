"""Which checkpoints of a run are kept: the newest ones, and those that are the best by a metric."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from graphtrain.errors import CheckpointError
from graphtrain.storage.manifest import Manifest, checkpoint_number, checkpoint_paths, read_manifest
from graphtrain.storage.regular import readable_failure, replace_file
from graphtrain.storage.run_directory import BEST

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

    def as_plain(self) -> dict[str, Any]:
        """The table that is written."""
        entries = [{"checkpoint": name, "value": value} for name, value in self.values.items()]
        return {"metric": self.metric, "mode": self.mode, "checkpoints": entries}

    @property
    def name(self) -> str | None:
        """The name of the best checkpoint; None if there is none."""
        return next(iter(self.values), None)

    @property
    def best(self) -> dict[str, Any] | None:
        """The same with the metric and the value."""
        name = self.name
        return None if name is None else {"checkpoint": name, "metric": self.metric, "value": self.values[name]}


def manifests_in(folder: Path) -> dict[Path, Manifest]:
    """The manifests of the checkpoints in a folder that can be read, oldest first."""
    manifests: dict[Path, Manifest] = {}
    for path in checkpoint_paths(folder):
        with suppress(CheckpointError):
            manifests[path] = read_manifest(path)
    return manifests


def rankings_of(
    manifests: Mapping[Path, Manifest],
    ranked_by: Mapping[str, Sequence[Any]] | None = None,
    newest: float = math.inf,
) -> dict[str, Ranking]:
    """The ranking of each node, by its path, the first node first.

    Arguments:
        manifests: of the checkpoints of a run, oldest first. Those that the run has given up are left out: a newer one
            follows an older one.
        ranked_by: node -> metric and mode. Default: as when the newest was saved.
        newest: the number of the checkpoint that the run has come from. Default: that of the newest.
    """
    lineage: dict[str, Manifest] = {}
    for path in reversed([*manifests]):
        if checkpoint_number(path) <= newest:
            lineage[path.name], newest = manifests[path], manifests[path].follows
    if ranked_by is None:
        ranked_by = next((manifest.ranked_by for manifest in lineage.values()), {})
    rankings = {}
    for node, (metric, mode) in ranked_by.items():
        values = {name: lineage[name].value_of(metric) for name in reversed(lineage)}
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        rule = Retention(best=metric, best_mode="max" if mode == "max" else "min")
        rankings[node] = Ranking(metric, mode, {name: finite[name] for name in rule.ranked(finite)})
    return rankings


def kept_of(
    manifests: Mapping[Path, Manifest], retentions: Mapping[str, Retention], rankings: Mapping[str, Ranking]
) -> Collection[str]:
    """The names of the checkpoints that some node keeps, and of those that the newest may have to return to.

    Of those with weights that are not finite, only the newest is kept, if there are others.
    """
    newest = [*manifests][-1]
    finite = [path for path, manifest in manifests.items() if not manifest.not_finite] or [*manifests]
    kept = {newest.name, *manifests[newest].saved_by.values()}
    for node, rule in (retentions or {"": Retention()}).items():
        best = [*rankings[node].values] if node in rankings else []
        kept |= {*(path.name for path in finite[-rule.keep :]), *best[: rule.keep_best]}
    return kept


def best_by_name(rankings: Mapping[str, Ranking]) -> dict[str, dict[str, Any] | None]:
    """The best checkpoint of each ranking, by its name in the run: ``best``; of further nodes ``best:NODE``."""
    names = [BEST, *(f"{BEST}:{node}" for node in [*rankings][1:])]
    return {BEST: None, **{name: ranking.best for name, ranking in zip(names, rankings.values(), strict=False)}}


def write_rankings(file: Path, rankings: Mapping[str, Ranking]) -> None:
    """Write them for people and other programs, or remove the file if nothing is ranked.

    The table is the ranking of the first node, which has those of the others in it.
    """
    with readable_failure(file):
        if not any(ranking.values for ranking in rankings.values()):
            file.unlink(missing_ok=True)
            return
        (node, first), *others = ((node, ranking.as_plain()) for node, ranking in rankings.items())
        table = {**first, "node": node, **({"others": dict(others)} if others else {})}
        replace_file(file, (json.dumps(table, indent=2) + "\n").encode(), flush=True)
