"""Which of the losses of a batch is next, and whose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from graphtrain import UsageError, described, node, optimizers_of, progress

_ONE_FOR_EACH = "pass a list with one for each; of a function that yields them, `begin_losses` makes it"


@node(writes="next_step", transient="next_step", family="compute")
class NextLoss:
    """Write a step function for the next loss of a batch; an edge leads back here while losses are `left`.

    Reads:
        batches: how many batches there were; with another one the first loss is next.
        optimizer: several, in the order of their losses.
        losses: a list of step functions, each called with the model and the batch; or, of `begin_losses`, a generator.

    Writes:
        next_step: what `train_batch` reads as its `training_step`.

    Guard fields:
        index: the number of the loss, from 0, which `train_batch` reads as its `turn`.
        left: the batch has a further one.
        of_batch: what `batches` was.

    Raises:
        UsageError: the list has more losses than there are optimizers, or fewer; or `losses` is no list.

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
