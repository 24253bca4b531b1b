"""Where an epoch begins."""

from __future__ import annotations

from graphtrain.kind import node


@node(effects="forget")
def begin_epoch() -> None:
    """Mark the beginning of an epoch, or of what does not continue what was before it; guards count its runs.

    What step functions have written to slots is not there any more, but for what `keep` of their nodes names.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit")
    >>> graph.guards["between_epochs"]
    'end_epoch.runs == begin_epoch.runs'
    """
