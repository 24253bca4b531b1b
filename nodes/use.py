"""Gradients that no step is taken with, on purpose."""

from __future__ import annotations

from graphtrain.kind import node


@node(effects="use")
def use() -> None:
    """Declare that the gradients of `optimizer` need no step of their own; nothing else happens.

    Where two optimizers share parameters, the step of one has used the gradients that the other sees. To throw
    gradients away without a step, `discard` clears them too.

    >>> from graphtrain import Graph
    >>> graph = (
    ...     Graph.load("fit")
    ...     .set("accumulate", every=2)
    ...     .guard("accumulation_reached", "accumulate.count > 0 and window_complete")
    ...     .guard("window_is_short", "accumulate.count > 0 and window_cut")
    ...     .insert("use")
    ...     .connect("accumulate", "use", when="window_is_short", first=False)
    ...     .connect("use", "zero_grad")
    ... )
    >>> graph.check()
    []
    """
