"""Where a run ends."""

from __future__ import annotations

from graphtrain.kind import node
from graphtrain.kind.trigger import Trigger


@node(family="bookkeeping")
class Finish:
    """Decide when the run has done enough; a guard on its edges asks `finish.due`.

    Arguments:
        after: the amount of training. Default: never. It is not latched: a run that is resumed with a larger amount
            trains on.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("finish", after=["3 epochs", "2 hours"])  # whichever comes first
    >>> graph.check()
    []
    """

    after: Trigger = Trigger("never")

    def __call__(self) -> None:
        """Nothing: its edge decides."""
