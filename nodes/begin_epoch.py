"""Where an epoch begins."""

from __future__ import annotations

from graphtrain.kind import node


@node(family="bookkeeping")
def begin_epoch() -> None:
    """Mark the beginning of an epoch; guards count its runs.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit")
    >>> graph.guards["between_epochs"]
    'end_epoch.runs == begin_epoch.runs'
    """
