"""The window of backward passes between two steps."""

from __future__ import annotations

from typing import Annotated

from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above


@node(family="gradient", varying="every")
class Accumulate:
    """Know how many backward passes the gradients of `optimizer` hold; a guard on its edges decides whether to step.

    Arguments:
        every: backward passes of each rank in one step of the optimizer. Default: 1, a step for every batch. A window
            keeps the size with which it opened: another value is that of the next one.

    Guard fields:
        count: backward passes since the gradients were last cleared, of all ranks.
        window: `every`, times the ranks with which the run began, when the first of them was added; of the window
            before, between two.
        full: there are as many as that.
        exchanged: the gradients of the window were summed over ranks; always false in one process.
        last_count: what `count` was at the last visit; after a step, the size of the window that was stepped.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("accumulate", every=2)
    >>> graph.check()
    []
    """

    every: Annotated[int, Above(0)] = 1

    # The engine counts, from the effects that the other nodes declare.
    count: int = progress(0, counts="backward", target="every")
    last_count: int = progress(0)
    exchanged: bool = progress(False)
    window: int = progress(0)

    def __call__(self) -> None:
        self.last_count = self.count

    @property
    def full(self) -> bool:
        """There are as many backward passes as the window takes."""
        return 0 < self.window <= self.count
