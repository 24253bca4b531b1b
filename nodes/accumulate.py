"""The accumulation window: the backward passes between two optimizer steps."""

from typing import Annotated

from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above


@node(family="gradient", varying="every")
class Accumulate:
    """Count the backward passes accumulated in the gradients of `optimizer`; a guard on its edges decides when to step.

    Arguments:
        every: backward passes per optimizer step, on each rank. Default: 1, a step for every batch. A window keeps the
            size with which it opened; a changed value applies to the next window.

    Guard fields:
        count: backward passes since the gradients were last cleared, over all ranks.
        window: size of the current window, which is `every` when it opened times the ranks at the start of the run;
            between two windows, that of the previous one.
        full: `count` has reached `window`.
        last_count: `count` at the last visit; after a step, the size of the window that was stepped.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("accumulate", every=2)
    >>> graph.check()
    []
    """

    every: Annotated[int, Above(0)] = 1

    # The engine counts, from the effects that the other nodes declare.
    count: int = progress(0, counts="backward", target="every")
    last_count: int = progress(0)
    window: int = progress(0)

    def __call__(self) -> None:
        self.last_count = self.count

    @property
    def full(self) -> bool:
        """There are as many backward passes as the window takes."""
        return 0 < self.window <= self.count
