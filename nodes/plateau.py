"""A learning rate that falls when a metric does not improve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch.optim.lr_scheduler import ReduceLROnPlateau

from graphtrain.errors import UsageError
from graphtrain.kind import node, progress


@node(optional="scheduler", family="update")
class Plateau:
    """Call ``scheduler.step(value)`` of a `ReduceLROnPlateau` with each value of a metric.

    Whether small or large values are good, the patience and the factor are those of the scheduler.

    Arguments:
        monitor: the metric. Default: "val/loss".

    Guard fields:
        recorded: there is a value that the scheduler has not been given.

    Raises:
        UsageError: the scheduler takes no metric.
        UnknownMetricError: nothing records the metric.

    >>> import torch
    >>> from graphtrain import Graph
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    >>> graph = Graph.load("fit").overlay("plateau").set("plateau", monitor="val/loss")
    >>> graph.check()
    []
    """

    monitors: ClassVar[str] = "monitor"

    monitor: str = "val/loss"

    recorded: bool = progress(False)
    value: float | None = progress(None)

    def setup(self, scheduler: Any = None) -> None:
        if scheduler is not None and not isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(
                f"plateau: `scheduler` is a {type(scheduler).__name__}, whose steps take no metric",
                "leave the overlay `plateau` out; or let `setup` return a ReduceLROnPlateau",
            )

    def hear_row(self, row: Mapping[str, float], is_evaluation: bool) -> None:
        if self.monitor in row:
            self.value, self.recorded = float(row[self.monitor]), True

    def __call__(self, scheduler: Any) -> None:
        if self.recorded and self.value is not None:
            self.recorded = False
            scheduler.step(self.value)
