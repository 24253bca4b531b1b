"""Reducing the learning rate when a metric does not improve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import node
from graphtrain.lazy import lazy_import
from graphtrain.nodes._monitor import FollowsMetric

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(optional="scheduler", family="update")
class Plateau(FollowsMetric):
    """Call ``scheduler.step(value)`` of a `ReduceLROnPlateau` with each value of a metric.

    Patience and factor are set in the scheduler, which must have been created with the same `mode`.

    Arguments:
        monitor: name of the metric. Default: "val/loss".
        mode: mode of the scheduler, "min" or "max". Default: by the name of the metric, as in `early_stop`.

    Guard fields:
        recorded: there is a value that was not passed to the scheduler yet.

    Raises:
        UsageError: the scheduler does not take a metric, or has a different mode.
        UnknownMetricError: nothing records the metric.

    >>> import torch
    >>> from graphtrain import Graph
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    >>> graph = Graph.load("fit").overlay("plateau").set("plateau", monitor="val/loss")
    >>> graph.check()
    []
    """

    def setup(self, scheduler: Any = None) -> None:
        if scheduler is not None and not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UsageError(
                f"plateau: `scheduler` is a {type(scheduler).__name__}, whose steps take no metric",
                "leave the overlay `plateau` out, or supply a ReduceLROnPlateau",
            )
        if scheduler is not None and scheduler.mode != (mode := self._mode):
            message = f'plateau: the mode of {self.monitor} is "{mode}", that of the scheduler is "{scheduler.mode}"'
            raise UsageError(message, f'create it with mode="{mode}", or set plateau.mode="{scheduler.mode}"')

    def __call__(self, scheduler: Any) -> None:
        if self.recorded and self.value is not None:
            self.recorded = False
            scheduler.step(self.value)
