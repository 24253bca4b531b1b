"""The kind of a node whose body is a graph; what such a node does, the compiler knows."""

from __future__ import annotations

from graphtrain.kind.mark import node
from graphtrain.kind.trigger import Trigger


@node(name="nested")
class Nested:
    """Run a whole graph as one node.

    Entering resets the progress inside; the node counts a run, and its trigger a firing, when the graph inside ends.

    Arguments:
        every: when to run the body. Default: at every visit.
    """

    every: Trigger | None = None

    def __call__(self) -> None:
        raise AssertionError("the compiler replaces a nested node by its body")
