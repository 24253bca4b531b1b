"""Clearing the gradients without a step."""

from graphtrain.kind import node
from graphtrain.nodes.zero_grad import ZeroGrad


@node(effects=("use", "zero_grad"))
class Discard(ZeroGrad):
    """Clear the gradients of `optimizer` without a step: one policy for an incomplete last window.

    Arguments:
        set_to_none: True drops the gradients, False fills them with zeros. Default: True, as in torch.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("drop").set("accumulate", every=2)
    >>> graph.check()
    []
    """
