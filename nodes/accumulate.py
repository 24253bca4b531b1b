"""The window of backward passes between two steps."""

from __future__ import annotations

from typing import Annotated

from graphtrain.kind import node, progress
from graphtrain.parameter import Above


@node
class Accumulate:
    """Know how many backward passes the gradients of `optimizer` hold; a guard on its edges decides whether to step.

    Arguments:
        every: backward passes in one step of the optimizer. Default: 1, a step for every batch.

    Guard fields:
        count: backward passes since the gradients were last cleared.
    """

    every: Annotated[int, Above(0)] = 1

    count: int = progress(0, counts="backward")

    def __call__(self) -> None:
        """Nothing: the engine keeps the count from the declared effects of the other nodes."""
