"""Asking for a checkpoint."""

from __future__ import annotations

from typing import Annotated, Any

from graphtrain.kind import node
from graphtrain.parameter import Above
from graphtrain.trigger import Trigger


@node(observer=True)
class Checkpoint:
    """Ask for a checkpoint; it holds the state of the edge that leaves this node.

    Arguments:
        every: when to save. Default: after every epoch.
        keep: how many of the newest checkpoints stay. Default: 2.
    """

    every: Trigger = Trigger("1 epochs")
    keep: Annotated[int, Above(0)] = 2

    _checkpoints: Any

    def setup(self, checkpoints: Any) -> None:
        self._checkpoints = checkpoints
        checkpoints.keep = self.keep

    def __call__(self) -> None:
        self._checkpoints.request()
