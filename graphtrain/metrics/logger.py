"""Who is told of a row of metrics: any callable, or one that is also told when the run begins and stands still."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphtrain.graph import Graph

Logger = Callable[[Mapping[str, float], int], None]


def _no_picture(format: str) -> bytes | None:
    return None


@dataclass(frozen=True)
class Beginning:
    """What a `RunLogger` is told when a run begins, or when this process goes on with one.

    Arguments:
        graph: the procedure as it is run.
        rows: the rows that stay, oldest first: none for a new run; on a resume those recorded before the checkpoint.
            Whatever was logged after them will be logged again.
        hyper_parameters: name -> plain value, such as ``{"optimizer.lr": 0.1, "accumulate.every": 4, "seed": 0}``.
        run_dir: where the run keeps its files. Default: None, it keeps none.
        picture: answers the picture of the graph as the content of a file of that format, ``"svg"`` or ``"png"``; None
            where it cannot be drawn. Default: it never can.

    >>> beginning = Beginning(Graph.load("fit"), rows=[{"step": 10, "epoch": 0.5, "loss": 0.25}])
    >>> beginning.rows[-1]["step"], beginning.picture("png")
    (10, None)
    """

    graph: Graph
    rows: Sequence[Mapping[str, float]] = ()
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    run_dir: Path | None = None
    picture: Callable[[str], bytes | None] = _no_picture


class RunLogger(ABC):
    """A logger that follows a run from process to process, so that what it keeps holds every row exactly once.

    >>> class Count(RunLogger):
    ...     def begin(self, beginning):
    ...         self.rows = len(beginning.rows)
    ...     def __call__(self, metrics, step):
    ...         self.rows += 1
    ...     def close(self):
    ...         pass
    >>> count = Count()
    >>> count.begin(Beginning(Graph.load("fit"))); count({"step": 1, "epoch": 0.1, "loss": 0.5}, 1)
    >>> count.rows
    1
    """

    @abstractmethod
    def begin(self, beginning: Beginning) -> None:
        """The run begins, or this process goes on with it; again, if it goes on with another graph."""

    @abstractmethod
    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """A row was recorded: `step`, `epoch` and values. The process may be killed at any moment after it."""

    @abstractmethod
    def close(self) -> None:
        """The run stands still, so that files can be let go of. A later row opens them again."""
