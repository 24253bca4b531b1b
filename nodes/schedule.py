"""The learning-rate scheduler."""

from __future__ import annotations

from typing import Any

from graphtrain.kind import node
from graphtrain.trigger import Trigger


@node(optional="scheduler")
class Schedule:
    """Call ``scheduler.step()``; without a scheduler the node is bypassed.

    Arguments:
        every: when to step it. Default: after every step of the optimizer.
    """

    every: Trigger = Trigger("1 steps")

    def __call__(self, scheduler: Any) -> None:
        scheduler.step()
