"""The learning-rate scheduler."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from graphtrain.errors import UsageError
from graphtrain.kind import node
from graphtrain.kind.trigger import Trigger


@node(optional="scheduler", family="update")
class Schedule:
    """Call ``scheduler.step()``; without a scheduler the node is bypassed.

    Arguments:
        every: when to step it. Default: after every step of the optimizer.

    Raises:
        UsageError: it is a `ReduceLROnPlateau`, whose steps need a metric.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("schedule", every="1 epochs")
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("1 steps")

    def __call__(self, scheduler: Any) -> None:
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(
                "`scheduler` is a ReduceLROnPlateau, whose steps need a metric",
                'add the overlay that steps it with a metric: --overlay plateau, in Python graph.overlay("plateau")',
            )
        scheduler.step()
