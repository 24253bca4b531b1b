"""Forward and backward for one batch, unless its loss is not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.kind import StepFunction, node, progress
from graphtrain.lazy import lazy_import
from graphtrain.nodes._precision import Around
from graphtrain.nodes._training_step import loss_and_metrics, without_ask
from graphtrain.nodes.train_batch import TrainBatch

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


class _NotFiniteLoss(Exception):  # noqa: N818 - it is no error: the batch is skipped
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


@node(writes="loss", effects="backward?", varying=("unfrozen", "turn"))
class TrainFiniteBatch(TrainBatch):
    """Do the same as `train_batch`, but skip batches whose loss is infinite or NaN.

    A skipped batch has no backward pass, does not count in a window, and is excluded from all means. Every visit
    synchronizes with the device and with other ranks, since all ranks must know which batches count.

    Reads:
        training_step, window, loss_scale: as in `train_batch`.

    Arguments:
        precision: as in `train_batch`. Default: "32-true".
        compile: as in `train_batch`. Default: False.
        keep: as in `train_batch`. Default: none.
        per: as in `train_batch`. Default: none.
        only_own: as in `train_batch`. Default: False.
        unfrozen: as in `train_batch`. Default: all.
        turn: as in `train_batch`. Default: all.
        on_out_of_memory: as in `train_batch`. Default: "stop".
        skip_none: as in `train_batch`. Default: False.

    Writes:
        loss: the loss, detached, also for a skipped batch.

    Guard fields:
        skipped: number of batches skipped on this rank.
        counted, parts: as in `train_batch`.

    Raises:
        UsageError: as in `train_batch`.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("skip_not_finite")
    >>> graph.check()
    []
    """

    skipped: int = progress(0)

    def _wrapped(self, call: Around | None) -> Around:
        def around(function: Any, model: Any, batch: Any) -> Any:
            result = function(model, batch) if call is None else call(function, model, batch)
            plain = without_ask(result, None)
            if plain is None and self.skip_none:
                return result
            plain = plain if self._objects is None else self._objects.without_taken(plain)
            loss = loss_and_metrics(plain, "training_step")[0].detach()
            if not torch.isfinite(loss):
                without_ask(result, self._asks)
                raise _NotFiniteLoss(loss)
            return result

        return around

    def __call__(
        self,
        model: Any,
        batch: Any,
        training_step: StepFunction,
        samples: int,
        window: int = 1,
        loss_scale: float | None = None,
    ) -> Any:
        try:
            return super().__call__(model, batch, training_step, samples, window, loss_scale), True
        except _NotFiniteLoss as skipped:
            if not self.skipped and self._report is not None:
                self._report(f"a batch is skipped: its loss is {float(skipped.loss)}; so are later ones like it")
            self.skipped += 1
            return skipped.loss, False
