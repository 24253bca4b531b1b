"""Asking for a checkpoint."""

from __future__ import annotations

from typing import Annotated, Literal

from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above
from graphtrain.kind.trigger import Trigger
from graphtrain.program.requests import Requests, SavePolicy
from graphtrain.storage.retention import Retention


@node(observer=True, family="saving")
class Checkpoint:
    """Ask for a checkpoint; it holds the state of the edge that leaves this node.

    Arguments:
        every: when to save. Default: after every epoch.
        keep: how many of the newest checkpoints stay. Default: 2.
        mode: "async" copies the state and writes it while training continues; "sync" writes it first. Default: "async".
        if_busy: what to do while the last checkpoint is still being written: "wait" for it, or "skip" this one.
            Default: "wait".
        if_failed: what to do when a checkpoint cannot be written, as on a full disk: "stop" the run, or "continue".
            Earlier checkpoints stay in either case. Default: "stop".
        best: a metric by which older checkpoints stay as well, such as "val/loss"; it counts for a checkpoint if it was
            recorded at the same step. Default: none.
        best_mode: whether the smallest values are best, "min", or the largest, "max". Default: "min".
        keep_best: how many of the best stay. Default: 1.

    Guard fields:
        skipped: saves that were skipped because the one before was still being written.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("checkpoint", every="1 epochs", best="val/loss")
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("1 epochs")
    keep: Annotated[int, Above(0)] = 2
    mode: Literal["async", "sync"] = "async"
    if_busy: Literal["wait", "skip"] = "wait"
    if_failed: Literal["stop", "continue"] = "stop"
    best: str | None = None
    best_mode: Literal["min", "max"] = "min"
    keep_best: Annotated[int, Above(0)] = 1

    skipped: int = progress(0)

    _requests: Requests
    _policy: SavePolicy

    def setup(self, checkpoints: Requests) -> None:
        self._requests = checkpoints
        retention = Retention(self.keep, self.best, self.best_mode, self.keep_best)
        self._policy = checkpoints.policy = SavePolicy(retention, self.mode, self.if_failed)

    def __call__(self) -> None:
        if self.if_busy == "skip" and self._requests.is_busy():
            self.skipped += 1
        else:
            self._requests.save(self._policy)
