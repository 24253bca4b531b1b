"""The exchange of gradients among processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.nodes._optimizers import optimizers_of, parameters_of

if TYPE_CHECKING:
    from graphtrain.program.agreement import Agreement


@node(effects="exchange", optional="ranks", synchronises=True)
class Exchange:
    """Sum the gradients of `optimizer` over all ranks; in one process there is nothing to do, and it is bypassed.

    The loss is divided by the size of the window over all ranks, so that the sum is the mean over its micro-batches.
    The sum is taken in buckets that follow the order of the parameters, whatever gradients arrive first, so that a
    resumed run adds in the same order. A parameter without a gradient on any rank keeps none; one without on some
    counts there as zeros.

    All ranks get the buffers that modules have on rank 0, such as the statistics of batch normalization: the next
    window begins with the same ones everywhere, as with DistributedDataParallel. A buffer whose shape differs between
    ranks, as of a cache, stays as it is.

    Arguments:
        average_buffers: True gives all ranks the means of buffers of floating-point numbers in their place. Default:
            False.

    Raises:
        RanksDivergedError: ranks came here by different edges.
        RankFailedError: a rank has failed, or did not come in time.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("accumulate", every=2)
    >>> graph.check(ranks=True)
    []
    >>> [problem.code for problem in graph.insert("again", "exchange", after="exchange").check(ranks=True)]
    ['G704']
    """

    average_buffers: bool = False

    _optimizers: tuple[Any, ...]
    _agreement: Agreement

    def setup(self, optimizer: Any, ranks: Agreement) -> None:
        self._optimizers, self._agreement = optimizers_of(optimizer), ranks

    def __call__(self) -> None:
        self._agreement.exchange(parameters_of(self._optimizers), averages=self.average_buffers)
