"""The window of backward passes between two steps."""

from __future__ import annotations

from graphtrain.errors import UsageError
from graphtrain.kind import node, progress


@node
class Accumulate:
    """Know how many backward passes the gradients of `optimizer` hold; a guard on its edges decides whether to step.

    Arguments:
        every: backward passes in one step of the optimizer. Default: 1, a step for every batch.

    Guard fields:
        count: backward passes since the gradients were last cleared.
    """

    every: int = 1

    count: int = progress(0, counts="backward")

    def setup(self) -> None:
        if self.every < 1:  # 0 would divide the loss by nothing, -1 climb it
            raise UsageError(f"accumulate.every: expected a whole number > 0, got {self.every}")

    def __call__(self) -> None:
        """Nothing: the engine keeps the count from the declared effects of the other nodes."""
