"""The losses of a batch, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphtrain import StepFunction, node


@node(writes="losses", transient="losses", family="compute")
def begin_losses(model: Any, batch: Any, training_step: StepFunction) -> Iterator[Any]:
    """Call ``training_step(model, batch)``, a generator function that yields one loss for each optimizer.

    The position of a generator cannot be saved, so there is no save point before its last loss. Code after its last
    `yield` does not run.

    Writes:
        losses: the generator, from which `next_loss` takes the losses.

    >>> from graphtrain import Graph
    >>> graph = (
    ...     Graph.load("fit")
    ...     .insert("begin_losses", between=("next_batch", "train_batch"))
    ...     .insert("next_loss", after="begin_losses", reads={"batches": "next_batch.batches"})
    ...     .set("train_batch", reads={"training_step": "next_step"})
    ...     .set("validate", every="never")
    ... )
    >>> def training_step(model, batch):
    ...     yield model.training_step(batch)
    >>> graph.check()
    []
    """
    return iter(training_step(model, batch))
