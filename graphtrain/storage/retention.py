"""Which checkpoints stay: the newest ones, and the best."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from graphtrain.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Retention:
    """What is kept of the checkpoints of a run.

    Arguments:
        keep: how many of the newest stay, at least 1. Default: 2.
        best: the metric by which some stay that are older. Default: none do.
        best_mode: whether the smallest values are best, or the largest. Default: "min".
        keep_best: how many of the best stay. Default: 1.

    >>> Retention(keep=1, best="loss").expired(["a", "b", "c"], {"a": 0.2, "b": 0.4})
    ['b']
    """

    keep: int = 2
    best: str | None = None
    best_mode: Literal["min", "max"] = "min"
    keep_best: int = 1

    @classmethod
    def merged(cls, retentions: Mapping[str, Retention]) -> Retention:
        """What is kept where several nodes ask for checkpoints: all that one of them keeps.

        Arguments:
            retentions: by the path of the node.

        Raises:
            UsageError: two of them rank checkpoints by different metrics, or in different directions.

        >>> Retention.merged({"often": Retention(keep=1), "checkpoint": Retention(best="loss", keep_best=3)})
        Retention(keep=2, best='loss', best_mode='min', keep_best=3)
        """
        keep = max(retention.keep for retention in retentions.values())
        ranking = {path: retention for path, retention in retentions.items() if retention.best is not None}
        if not ranking:
            return cls(keep)
        path, first = next(iter(ranking.items()))
        for other_path, other in ranking.items():
            for name in ("best", "best_mode"):
                if getattr(other, name) != getattr(first, name):
                    raise UsageError(
                        f"`{path}.{name}` is {getattr(first, name)!r} and `{other_path}.{name}` is "
                        f"{getattr(other, name)!r}, but a run ranks its checkpoints in one way",
                        "give both the same value, or leave `best` of one of them away",
                    )
        return cls(keep, first.best, first.best_mode, max(retention.keep_best for retention in ranking.values()))

    def expired(
        self,
        oldest_first: Sequence[T],
        values: Mapping[T, float],
        unsound: Collection[T] = (),
        not_finite: Collection[T] = (),
    ) -> list[T]:
        """What may go, oldest first.

        Arguments:
            values: of the metric, where it was measured for the weights in the checkpoint.
            unsound: what could not be read; it does not count among those that are kept.
            not_finite: what has weights that are not finite. Where others are there, only the newest stays, beside as
                many others as are kept. Default: nothing.

        >>> Retention(keep=1).expired(["a", "b", "c", "d"], {}, not_finite=["c", "d"])
        ['a', 'c']
        """
        sound = [checkpoint for checkpoint in oldest_first if checkpoint not in unsound]
        finite = [checkpoint for checkpoint in sound if checkpoint not in not_finite]
        newest = (finite or sound)[-max(self.keep, 1) :]
        kept = {*newest, *sound[-1:], *self.ranked(values)[: self.keep_best]}
        return [checkpoint for checkpoint in oldest_first if checkpoint not in kept]

    def is_among_best(self, value: float, others: Sequence[float]) -> bool:
        """True if a value is one of the `keep_best` best, given those that were reached before; NaN never is.

        >>> Retention(best="loss", keep_best=2).is_among_best(0.3, [0.2, 0.3])
        False
        """
        own = len(others)
        return own in self.ranked({**dict(enumerate(others)), own: value})[: self.keep_best]

    def ranked(self, values: Mapping[T, float]) -> list[T]:
        """The best first; of equal ones the first that was reached. NaN is never best."""
        sign = 1 if self.best_mode == "min" else -1
        numbers = {checkpoint: value for checkpoint, value in values.items() if not math.isnan(value)}
        return sorted(numbers, key=lambda checkpoint: sign * numbers[checkpoint])
