"""Going back where the loss spikes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from graphtrain import Above, NotFiniteError, node, progress

_LATEST = 0.01  # the weight of the latest loss in mean and variance: they reach back about 100 losses


@node(synchronises=True, family="saving", optional="deviations")
class Rollback:
    """Go back to the last checkpoint where the loss of a batch spikes, and leave out that batch and those before it.

    The run goes back to what the node `checkpoint` saved last, with everything but the progress of this node, and
    trains again from there; checkpoints with weights that are not finite are left out, and the one that a fork begins
    with counts. A guard reads `skipped`, so that batches are fetched and not trained on. Before the first checkpoint
    there is nowhere to go back to: the first spike there is reported, and all are trained through, but a loss that is
    not finite ends the run. Among several ranks, the mean of their losses counts. Every visit waits for the device. It
    needs a run directory; each checkpoint that it goes back to has to be written, so `checkpoint.if_busy` stays at
    "wait".

    Sources: Chowdhery et al., "PaLM: scaling language modeling with pathways", 2022, section 5.1, where training went
    back by about 100 steps, and some 200 to 500 batches around each spike were left out. Kumar et al., "ZClip: adaptive
    spike mitigation for LLM pre-training", 2025, which judges norms of gradients by exponential means in this way.

    Reads:
        loss: of the batch.

    Arguments:
        deviations: how many standard deviations a loss has to be above the mean of those before it to be a spike; both
            are exponential, over about 100 losses, in which a spike counts as its limit. A loss that is not finite is
            one always. Infinite: nothing is, and nothing waits. Default: 10.
        warmup: losses by which the mean is known; none of them is a spike, unless it is not finite. Default: 25.
        skip: how many batches of the epoch are left out, of all ranks, the last of them that of the spike. Default: 10.
        most: how often the run may go back before that is an error. Default: 10.

    Guard fields:
        skipped: the batch just fetched is one that is left out.
        skips: all of them, as epoch and number in the epoch.
        mean, variance: of the losses so far.
        losses: how many there were.

    Raises:
        NotFiniteError: the run has gone back as often as it may, or a loss is not finite, and there is no checkpoint to
            go back to.
        UsageError: there is no run directory.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("rollback").set("rollback", deviations=6.0, skip=200)
    >>> graph.check()
    []
    """

    deviations: Annotated[float, Above(0)] = 10.0
    warmup: Annotated[int, Above(0)] = 25
    skip: Annotated[int, Above(0)] = 10
    most: Annotated[int, Above(0)] = 10
    skips: list[list[int]] = progress([])
    mean: float = progress(0.0)
    variance: float = progress(0.0)
    losses: int = progress(0)
    reported: bool = progress(False)

    def setup(self, history: Any, notify: Callable[[str], None], ranks: Any = None) -> None:
        self._history, self._notify, self._ranks = history, notify, ranks

    @property
    def skipped(self) -> bool:
        return bool(self.skips) and self._history.batches()[0] in self.skips

    def __call__(self, loss: Any) -> None:
        losses = [loss] if self._ranks is None else self._ranks.gather(None if loss is None else float(loss))
        known = [float(each) for each in losses if each is not None]
        if not known:  # no rank has a loss where all of them skip a batch
            return
        value = sum(known) / len(known)
        is_known = self.losses >= self.warmup
        limit = self.mean + self.deviations * math.sqrt(self.variance) if is_known else math.inf
        if math.isfinite(seen := min(value, limit)):
            self.losses += 1
            weight, difference = max(_LATEST, 1 / self.losses), seen - self.mean
            self.mean += weight * difference
            self.variance = (1 - weight) * (self.variance + weight * difference**2)
        if value <= limit and math.isfinite(value):
            return
        if self._history.restore("checkpoint", most=self.most):
            self.skips = [*self.skips, *self._history.batches(self.skip)]
            return
        [[epoch, number]] = self._history.batches()
        spike = f"rollback: the loss is {value:.4g} at batch {number + 1} of epoch {epoch + 1}"
        if not math.isfinite(value):
            raise NotFiniteError(
                f"{spike}, and there is no checkpoint with finite weights to go back to",
                "checkpoint.every makes one earlier; --overlay check_finite names the batch, "
                "and --overlay skip_not_finite leaves such batches out",
            )
        if not self.reported:
            self.reported = True
            self._notify(
                f"{spike}, and no checkpoint was made that the run could go back to: it trains on, and so it does at "
                "later spikes before the first checkpoint; checkpoint.every makes one earlier"
            )
