"""The learning-rate scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import node
from graphtrain.kind.trigger import Trigger
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import optimizers_of

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(optional="scheduler", family="update")
class Schedule:
    """Call ``scheduler.step()``; without a scheduler the node is bypassed.

    It is stepped whenever `every` is due. Dropped windows are not steps, so a schedule in steps ignores them.

    Reads:
        scheduler: a scheduler, or a list of several, stepped in this order: ``reads = { scheduler = ["a", "b"] }``.

    Arguments:
        every: when to step it. Default: after every step of the optimizer.

    Raises:
        UsageError: it is a `ReduceLROnPlateau`, which needs a metric.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("schedule", every="1 epochs")
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("1 steps")

    def __call__(self, scheduler: Any) -> None:
        for each in optimizers_of(scheduler):
            if isinstance(each, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise UsageError(
                    "`scheduler` is a ReduceLROnPlateau, whose `step` needs a metric",
                    'add the overlay `plateau`: --overlay plateau, in Python graph.overlay("plateau")',
                )
            each.step()
