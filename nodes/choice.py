"""A branch: a node that does nothing, whose edges decide."""

from graphtrain.kind import node


@node(family="choice")
def choice() -> None:
    """Do nothing; the first edge whose guard holds is taken.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").insert("after_step", "choice", after="step")
    >>> graph.check()
    []
    """
