"""What the model predicts for one batch."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.kind import StepFunction, node
from graphtrain.nodes._precision import Precision, autocast_of


@node(writes="predictions", family="compute")
class PredictBatch:
    """Call ``predict_step(model, batch)`` without gradients, or the model with the batch where there is none.

    It returns what is predicted for each sample of the batch: a tensor or a list whose first dimension is the samples,
    or a mapping of such.

    Arguments:
        precision: "32-true" computes in the types that model and batch have, "bf16-mixed" matrix products in bfloat16,
            by torch's autocast around the step function. Default: "32-true".

    Writes:
        predictions: what it returned.

    Raises:
        UsageError: it returned nothing, or the device has no such precision.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("predict").set("predict_batch", precision="bf16-mixed")
    >>> graph.check()
    []
    """

    precision: Precision = "32-true"

    _autocast: torch.autocast | None

    def setup(self, device: torch.device) -> None:
        self._autocast = autocast_of(self.precision, device)

    def __call__(self, model: Any, batch: Any, predict_step: StepFunction | None = None) -> Any:
        function = predict_step or _of_model
        with torch.no_grad():
            if self._autocast is None:
                predictions = function(model, batch)
            else:
                with self._autocast:
                    predictions = function(model, batch)
        if predictions is None:
            name = "predict_step" if predict_step is not None else "the model"
            raise UsageError(f"`{name}` must return a prediction for each sample; it returned nothing")
        return predictions


def _of_model(model: Any, batch: Any) -> Any:
    return model(batch)
