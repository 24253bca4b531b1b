"""Where a run ends."""

from __future__ import annotations

from graphtrain.kind import node
from graphtrain.kind.trigger import Trigger


@node
class Finish:
    """Say when the run has done enough; a guard on its edges asks `finish.due`.

    Arguments:
        after: the amount of training. Default: never. It is not latched: raising it later goes on.
    """

    after: Trigger = Trigger("never")

    def __call__(self) -> None:
        """Nothing: its edge decides."""
