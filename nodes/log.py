"""A row of metrics now and then."""

from __future__ import annotations

from typing import Any

from graphtrain.kind import node
from graphtrain.kind.trigger import Trigger
from graphtrain.metrics.recorder import Means, Recorder


@node(observer=True)
class Log:
    """Record the means since the last row, weighted by samples, and the learning rate of the first parameter group.

    Losses stay on the device until then: one transfer for all of them.

    Arguments:
        every: when to write a row. Default: every 50 steps.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("log", every="1 steps")
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("50 steps")

    _means: Means
    _recorder: Recorder

    def setup(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._means = recorder.means("train")

    def __call__(self, optimizer: Any = None) -> None:
        means = self._means.take("log")
        if not means:
            return
        if hasattr(optimizer, "param_groups"):
            means.setdefault("lr", float(optimizer.param_groups[0]["lr"]))
        self._recorder.row(means)
