"""Forward and backward for a task, with adapted weights."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

from graphtrain import StepFunction, TrainBatch, node
from graphtrain.graphs.gallery.maml.adapt import call_with, shifted

if TYPE_CHECKING:
    from graphtrain.graphs.gallery.maml.adapt import Weights


@node(writes="loss", effects="backward", varying=("unfrozen", "turn"))
class TrainAdapted(TrainBatch):
    """Do the same as `train_batch`, for the `query` of a task and with the weights adapted by the node `adapt`.

    The gradients are for the weights before adaptation: first-order, or through the steps of `adapt`.

    Reads:
        training_step, window, loss_scale: as in `train_batch`.
        shift: what `adapt` adds to the parameters.

    Arguments:
        precision: as in `train_batch`. Default: "32-true".
        compile: only False: each visit has different weights, and would be compiled again. Default: False.
        keep: as in `train_batch`. Default: none.
        per: as in `train_batch`. Default: none.
        only_own: as in `train_batch`. Default: False.
        unfrozen: as in `train_batch`. Default: all.
        turn: as in `train_batch`. Default: all.
        skip_none: as in `train_batch`. Default: False.

    Writes:
        loss: as in `train_batch`.

    Guard fields:
        counted: as in `train_batch`.

    Raises:
        UsageError: as in `train_batch`.

    >>> import torch
    >>> from graphtrain import Graph
    >>> train_data = [{"support": torch.rand(4, 2), "query": torch.rand(4, 2)} for _ in range(3)]
    >>> graph = Graph.load("maml").set("inner/adapt", rate=1e-5, second_order=False)
    >>> graph.check()
    []
    """

    compile: Literal[False] = False

    def __call__(  # type: ignore[override]  # it reads one slot more
        self, model: Any, batch: Any, training_step: StepFunction, samples: int, shift: Weights, window: int = 1,
        loss_scale: float | None = None,
    ) -> Any:  # fmt: skip
        step: Any = functools.partial(call_with, shifted(model, shift), training_step)
        return super().__call__(model, batch["query"], step, samples, window, loss_scale)
