"""The exchange of gradients between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.nodes._optimizers import optimizers_of, parameters_of

if TYPE_CHECKING:
    from graphtrain.program.agreement import Agreement


@node(effects="exchange", optional="ranks", synchronises=True)
class Exchange:
    """Sum the gradients of `optimizer` over all ranks; with one process, the node is bypassed.

    The loss is divided by the size of the window over all ranks, so that the sum is the mean over its micro-batches.
    Gradients are summed in buckets in the order of the parameters, not in the order in which they become ready, so that
    a resumed run adds in the same order. A parameter that has no gradient on any rank keeps none; if it has one only on
    some ranks, the others contribute zeros.

    All ranks receive the buffers of modules from rank 0, such as the statistics of batch normalization, so that the
    next window begins with the same buffers everywhere, as with DistributedDataParallel. A buffer whose shape differs
    between ranks, such as a cache, is not changed.

    Arguments:
        overlap: True sums gradients of a megabyte and more while the last backward pass of a window still runs, in a
            graph in which the end of a window is known before that pass, as in `fit`; the results have the same bits.
            Default: True.

    Raises:
        RanksDivergedError: ranks arrived by different edges.
        RankFailedError: a rank has failed, or did not arrive in time.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("accumulate", every=2)
    >>> graph.check(ranks=True)
    []
    >>> [problem.code for problem in graph.insert("again", "exchange", after="exchange").check(ranks=True)]
    ['G704']
    """

    overlap: bool = True

    _optimizers: tuple[Any, ...]
    _agreement: Agreement

    def setup(self, optimizer: Any, ranks: Agreement) -> None:
        self._optimizers, self._agreement = optimizers_of(optimizer), ranks

    def begin(self) -> None:
        """Prepare for the last backward pass of a window, in which its gradients are summed."""
        self._agreement.begin(parameters_of(self._optimizers))

    def __call__(self) -> None:
        self._agreement.exchange(parameters_of(self._optimizers))
