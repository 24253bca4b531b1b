"""Declaring that gradients are deliberately used without a step."""

from graphtrain.kind import node


@node(effects="use")
def use() -> None:
    """Declare that the gradients of `optimizer` are used without a step; this node does nothing else.

    If two optimizers share parameters, the step of one has already used the gradients of the other. To drop gradients
    without a step, use `discard`, which also clears them.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").insert("use", after="step")
    >>> graph.check()
    []
    """
