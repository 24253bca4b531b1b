"""Which checkpoints of a run are kept: the newest ones, and those that are the best by a metric."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from graphtrain.storage.manifest import Manifest, SavedCheckpoint

T = TypeVar("T")

_moment_of = operator.attrgetter(
    "step", "epoch", "clock_of", "clocks", "graph_hash", "hyper_parameters", "ranks", "run"
)


@dataclass(frozen=True)
class Retention:
    """Which checkpoints of a run a node keeps. With several nodes, a checkpoint stays if any of them keeps it.

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

    def is_among_best(self, value: float, earlier: Sequence[float]) -> bool:
        """True if a value is among the `keep_best` best of it and the earlier values; NaN never is.

        >>> Retention(best="loss", keep_best=2).is_among_best(0.3, [0.2, 0.3])
        False
        """
        return len(earlier) in self.ranked(dict(enumerate([*earlier, value])))[: self.keep_best]

    def ranked(self, values: Mapping[T, float]) -> list[T]:
        """The names of values, best first; equal values in their order. NaN is left out.

        >>> Retention(best="accuracy", best_mode="max").ranked({"a": 0.5, "b": 0.7, "c": 0.5})
        ['b', 'a', 'c']
        """
        numbers = {name: value for name, value in values.items() if not math.isnan(value)}
        return sorted(numbers, key=numbers.__getitem__, reverse=self.best_mode == "max")


class Ranking(NamedTuple):
    """How a node ranks checkpoints: the metric, and name -> value, the best first."""

    metric: str
    values: Mapping[str, float]

    @property
    def best(self) -> dict[str, Any] | None:
        """The name of the best checkpoint, its value and the metric; None if there is none."""
        for name, value in self.values.items():
            return {"checkpoint": name, "metric": self.metric, "value": value}
        return None


def is_replaced(newest: SavedCheckpoint, facts: Manifest) -> bool:
    """True if a checkpoint with these facts has the same state as the newest, as one at the end of a run may have."""
    before = newest.manifest
    is_same, is_worse = _moment_of(before) == _moment_of(facts), bool(facts.not_finite and not before.not_finite)
    return is_same and newest.number == facts.follows and newest.name != facts.return_to and not is_worse


def lineage_of(checkpoints: Iterable[SavedCheckpoint], newest: float = math.inf) -> list[SavedCheckpoint]:
    """The checkpoints that a run came through, the newest first, without those abandoned for an earlier one.

    Arguments:
        checkpoints: those of a run, the newest first.
        newest: the number of the one to begin with. Default: that of the newest.
    """
    lineage = []
    for checkpoint in checkpoints:
        if checkpoint.number <= newest:
            lineage.append(checkpoint)
            newest = checkpoint.manifest.follows
    return lineage


def rankings_of(lineage: Sequence[SavedCheckpoint]) -> dict[str, Ranking]:
    """The ranking of each node that ranked checkpoints when the newest was saved, by its path, from `lineage_of`."""
    rankings = {}
    for node, (metric, mode) in (lineage[0].manifest.ranked_by if lineage else {}).items():
        values = {each.name: each.manifest.ranked.get(metric) for each in reversed(lineage)}
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        names = Retention(best_mode="max" if mode == "max" else "min").ranked(finite)
        rankings[node] = Ranking(metric, {name: finite[name] for name in names})
    return rankings


def expired(
    checkpoints: Sequence[SavedCheckpoint], retentions: Mapping[str, Retention], rankings: Mapping[str, Ranking]
) -> list[SavedCheckpoint]:
    """The checkpoints of a run to remove: no node keeps them, and the newest does not return to them.

    A checkpoint with weights that are not finite is kept only if it is the newest, or if there are no others. One that
    the run has abandoned does not count, and is removed once enough newer ones are kept.

    Arguments:
        checkpoints: the newest first.
    """
    lineage, rules = lineage_of(checkpoints), [*retentions.values()] or [Retention()]
    finite = [each for each in lineage if not each.manifest.not_finite] or lineage
    newest = finite[: max(rule.keep for rule in rules)]
    kept = {each.name for each in (lineage[0], *newest)} | {lineage[0].manifest.return_to}
    for node, ranking in rankings.items():
        if node in retentions:
            kept |= {*[*ranking.values][: retentions[node].keep_best]}
    rest = [each for each in checkpoints if each.name not in kept]
    return [each for each in rest if each in lineage or each.manifest.not_finite or each.number < newest[-1].number]
