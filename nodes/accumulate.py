"""The window of backward passes between two steps."""

from __future__ import annotations

from typing import Annotated

from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above


@node(family="gradient")
class Accumulate:
    """Know how many backward passes the gradients of `optimizer` hold; a guard on its edges decides whether to step.

    Arguments:
        every: backward passes in one step of the optimizer. Default: 1, a step for every batch.

    Guard fields:
        count: backward passes since the gradients were last cleared.
        last_count: what `count` was at the last visit; after a step, the size of the window that was stepped.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("accumulate", every=2)
    >>> graph.check()
    []
    """

    every: Annotated[int, Above(0)] = 1

    # The engine counts, from the effects that the other nodes declare.
    count: int = progress(0, counts="backward", target="every", last="last_count")
    last_count: int = progress(0)

    def __call__(self) -> None:
        self.last_count = self.count
