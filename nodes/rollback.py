"""Going back where the loss spikes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.errors import UsageError
from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above
from graphtrain.nodes.agree import agreed

if TYPE_CHECKING:
    from graphtrain.program.agreement import Agreement
    from graphtrain.program.history import History


@node(synchronises=True, family="saving", idle_without="factor")
class Rollback:
    """Go back to the last checkpoint where the loss of a batch spikes, and leave out that batch and those before it.

    The run goes back to what the node `checkpoint` saved last, with everything but the progress of this node, and
    trains again from there. A guard reads `skipped`, so that batches are fetched and not trained on. Before the first
    checkpoint there is nowhere to go back to, and a spike is trained through. Among several ranks, the mean of their
    losses counts. Every visit waits for the device. It needs a run directory, and losses that are not below 0; each
    checkpoint that it goes back to has to be written, so `checkpoint.if_busy` stays at "wait".

    Source: Chowdhery et al., "PaLM: scaling language modeling with pathways", 2022, section 5.1, where training went
    back by about 100 steps, and some 200 to 500 batches around each spike were left out.

    Reads:
        loss: of the batch.

    Arguments:
        factor: by how much a loss has to exceed the mean of those before it to be a spike; an exponential mean, in
            which a tenth is the last one and a spike counts as its limit. Infinite: nothing does, and nothing waits.
            Default: 2.
        skip: how many batches of the epoch are left out, of all ranks, the last of them that of the spike. Default: 10.
        most: how often the run may go back before that is an error. Default: 10.

    Guard fields:
        skipped: the batch just fetched is one that is left out.
        skips: all of them, as epoch and number in the epoch.
        mean: the mean of the losses so far.

    Raises:
        UsageError: the run has gone back as often as it may, or has no run directory; or a loss is below 0.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("rollback").set("rollback", factor=3.0, skip=200)
    >>> graph.check()
    []
    """

    factor: Annotated[float, Above(1)] = 2.0
    skip: Annotated[int, Above(0)] = 10
    most: Annotated[int, Above(0)] = 10
    skips: list[list[int]] = progress([])
    mean: float = progress(0.0)

    def setup(self, history: History, ranks: Agreement | None = None) -> None:
        self._history, self._ranks = history, ranks

    @property
    def skipped(self) -> bool:
        return bool(self.skips) and self._history.batches()[0] in self.skips

    def __call__(self, loss: Any) -> None:
        # No rank has a loss where all of them skip a batch; the first one may be no number, which is no mean.
        value, limit = agreed(loss, 1.0, "mean", self._ranks, self.mean), self.factor * self.mean or math.inf
        if value < 0:
            raise UsageError(
                f"rollback: the loss is {value:.4g}, and {self.factor:g} times a mean below 0 is no limit to a spike",
                "add a constant that keeps the loss above 0, which changes no gradient, or leave `rollback` out",
            )
        self.mean += (seen - self.mean) * (0.1 if self.mean else 1.0) if (seen := min(limit, value)) < math.inf else 0.0
        if not value <= limit and self._history.restore("checkpoint", most=self.most):
            self.skips = [*self.skips, *self._history.batches(self.skip)]
