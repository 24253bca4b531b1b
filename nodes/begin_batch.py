"""Where a batch begins that is trained on in several splits."""

from __future__ import annotations

from graphtrain.kind import node


@node(family="bookkeeping", begins_epoch=True)
def begin_batch() -> None:
    """Mark the beginning of a batch whose sequences do not continue those of the batch before.

    What step functions have written to slots, such as a hidden state, is not there any more, but for what `keep` of
    their nodes names.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("split_batch").set("split_batch", length=35)
    >>> [str(edge) for edge in graph.edges["begin_batch"]]
    ['split_batch']
    """
