"""Prediction for one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import StepFunction, node
from graphtrain.kind.parameter import Precision
from graphtrain.lazy import lazy_import
from graphtrain.nodes._precision import StepCaller, step_caller

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(writes="predictions", family="compute")
class PredictBatch:
    """Call ``predict_step(model, batch)`` without gradients, or ``model(batch)`` if there is none.

    It returns a prediction for each sample of the batch: a tensor or a list whose first dimension is the samples, or a
    mapping of these.

    Arguments:
        precision: as in `eval_batch`. Default: the precision in which the graph trains, or "32-true".

    Writes:
        predictions: the returned value.

    Raises:
        UsageError: it returned None, or the device does not support the precision.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("predict").set("predict_batch", precision="bf16-mixed")
    >>> graph.check()
    []
    """

    precision: Precision | None = None

    _caller: StepCaller | None  # calls the step function; None for a plain call

    def setup(self, device: Any, training_precision: Precision = "32-true") -> None:
        self._caller = step_caller(self.precision or training_precision, device)

    def __call__(self, model: Any, batch: Any, predict_step: StepFunction | None = None) -> Any:
        function = predict_step or (lambda model, batch: model(batch))
        with torch.no_grad():
            predictions = function(model, batch) if self._caller is None else self._caller(function, model, batch)
        if predictions is None:
            name = "predict_step" if predict_step is not None else "the model"
            raise UsageError(f"`{name}` must return a prediction for each sample; it returned None")
        return predictions

    idle = __call__  # on a rank without a batch: it takes part in the forward pass of a sharded model
