"""Clearing the gradients without a step."""

from __future__ import annotations

from graphtrain.kind import node
from graphtrain.nodes.zero_grad import ZeroGrad


@node(effects=("use", "zero_grad"))
class Discard(ZeroGrad):
    """Clear the gradients of `optimizer` without a step: one policy for an incomplete last window.

    Arguments:
        set_to_none: True drops the gradients, False fills them with zeros. Default: True, as in torch.

    >>> from graphtrain import Graph
    >>> graph = (
    ...     Graph.load("fit")
    ...     .set("accumulate", every=2)
    ...     .guard("accumulation_reached", "accumulate.count > 0 and window_complete")
    ...     .guard("window_is_short", "accumulate.count > 0 and window_cut")
    ...     .insert("discard")
    ...     .connect("accumulate", "discard", when="window_is_short", before="decide")
    ...     .connect("discard", "decide")
    ... )
    >>> graph.check()
    []
    """
