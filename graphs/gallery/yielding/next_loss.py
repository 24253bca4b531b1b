"""Choosing the next loss of a batch and its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphtrain import UsageError, described, node, optimizers_of, progress


@node(writes="next_step", transient="next_step", family="compute")
class NextLoss:
    """Write a step function for the next loss of a batch; an edge leads back here while there are losses `left`.

    Reads:
        batches: number of batches so far; when it changes, the first loss is next.
        optimizer: several optimizers, in the order of their losses.
        losses: a list of step functions, each called with the model and the batch.

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
        if not isinstance(losses, Sequence) or len(losses) != count:
            message = f"`losses` is {described(losses)}, and there are {count} optimizers"
            raise UsageError(message, "pass a list of functions of the model and the batch, one for each optimizer")
        return losses[self.index]
