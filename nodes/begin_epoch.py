"""The beginning of an epoch."""

from graphtrain.kind import node


@node(effects="forget")
def begin_epoch() -> None:
    """Mark the beginning of an epoch, or of any part that does not continue the one before; guards count its runs.

    Slots written by step functions are cleared, except those named by the parameter `keep` of their nodes.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit")
    >>> graph.guards["between_epochs"]
    'end_epoch.runs == begin_epoch.runs'
    """
