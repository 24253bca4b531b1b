"""Choosing the next loss of a batch and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from graphtrain import UsageError, described, node, optimizers_of, progress

_ONE_FOR_EACH = "pass a list with one for each; of a function that yields them, `begin_losses` makes it"


@node(writes="next_step", transient="next_step", family="compute")
class NextLoss:
    """Write a step function for the next loss of a batch; an edge leads back here while there are losses `left`.

    Reads:
        batches: number of batches so far; when it changes, the first loss is next.
        optimizer: several optimizers, in the order of their losses.
        losses: a list of step functions, each called with the model and the batch, or the generator of `begin_losses`.

    Writes:
        next_step: read by `train_batch` as its `training_step`.

    Guard fields:
        index: index of the loss, from 0, which `train_batch` reads as its `turn`.
        left: there are further losses for the batch.
        of_batch: the value of `batches` for the current batch.

    Raises:
        UsageError: the number of losses differs from the number of optimizers, or `losses` is not a list.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("yielding")
    >>> losses = [lambda model, batch: model.training_step(batch)]
    >>> graph.check()
    []
    """

    index: int = progress(0)
    left: bool = progress(False)
    of_batch: int = progress(-1)

    def __call__(self, batches: int, optimizer: Any, losses: Any) -> Any:
        self.index = self.index + 1 if batches == self.of_batch else 0
        count = len(optimizers_of(optimizer))
        self.of_batch, self.left = batches, self.index + 1 < count
        if isinstance(losses, Iterator):
            return lambda model, batch: _yielded(losses, self.index, count)
        if not isinstance(losses, Sequence) or len(losses) != count:
            raise UsageError(f"`losses` is {described(losses)}, and there are {count} optimizers", _ONE_FOR_EACH)
        return losses[self.index]


def _yielded(losses: Iterator[Any], index: int, count: int) -> Any:
    try:
        return next(losses)
    except StopIteration:
        message = f"`training_step` yielded {index} losses, and there are {count} optimizers"
        raise UsageError(message, "yield one for each") from None
