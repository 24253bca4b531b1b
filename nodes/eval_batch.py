"""Evaluation on one batch that is not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.kind import StepFunction, node
from graphtrain.metrics.recorder import Recorder
from graphtrain.nodes._precision import Precision, autocast_of
from graphtrain.nodes._step_result import metrics_of


@node(family="compute")
class EvalBatch:
    """Call ``validation_step(model, batch)`` without gradients, or `training_step` where there is none.

    It returns the loss, or a mapping of metrics (numbers or scalar tensors); their means over samples are recorded.

    Arguments:
        precision: "32-true" computes in the types that model and batch have, "bf16-mixed" matrix products in bfloat16,
            by torch's autocast around the step function. Default: "32-true", whatever `train_batch` trains in.

    Raises:
        UsageError: there is no step function, what it returned is no metrics, or the device has no such precision.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("evaluate").set("eval_batch", precision="bf16-mixed")
    >>> graph.check()
    []
    """

    precision: Precision = "32-true"

    _recorder: Recorder
    _autocast: torch.autocast | None

    def setup(self, recorder: Recorder, device: torch.device) -> None:
        self._recorder = recorder
        self._autocast = autocast_of(self.precision, device)

    def __call__(
        self,
        model: Any,
        batch: Any,
        split: str,
        samples: int,
        validation_step: StepFunction | None = None,
        training_step: StepFunction | None = None,
    ) -> None:
        function = validation_step or training_step
        if function is None:
            raise UsageError("there is neither a `validation_step` nor a `training_step` to evaluate with")
        with torch.no_grad():
            if self._autocast is None:
                result = function(model, batch)
            else:
                with self._autocast:
                    result = function(model, batch)
        name = "validation_step" if validation_step is not None else "training_step"
        if result is None:
            raise UsageError(f"`{name}` must return a mapping of metrics, or a scalar; it returned nothing")
        metrics = metrics_of(result if isinstance(result, Mapping) else {"loss": result}, name)
        self._recorder.means(split).add(metrics, samples)
