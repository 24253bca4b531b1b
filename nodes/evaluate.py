"""Evaluation on data that is not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.kind import StepFunction, node
from graphtrain.metrics.recorder import Recorder
from graphtrain.nodes.precision import Precision, autocast_of
from graphtrain.nodes.step_result import metrics_of
from graphtrain.state.random import capture_random, restore_random, seed_everything


@node(writes=("split", "training_state"), effects="eval")
class BeginEvaluation:
    """Put `model` into evaluation mode, and set its training modes and the random numbers aside.

    The random numbers of an evaluation start from the seed of the run, so each evaluation sees the same ones.

    Arguments:
        split: the name under which metrics are recorded. Default: "val", as in ``val/loss``.

    Writes:
        split: that name.
        training_state: what `end_evaluation` puts back.
    """

    split: str = "val"

    def __call__(self, model: torch.nn.Module, recorder: Recorder, seed: int | None) -> tuple[str, dict[str, Any]]:
        modes = {name: module.training for name, module in model.named_modules()}
        training_state = {"modes": modes, "random": capture_random()}
        model.eval()
        if seed is not None:
            seed_everything(seed)
        recorder.means(self.split, ("whole",)).clear()
        return self.split, training_state


@node
class EvalBatch:
    """Call ``validation_step(model, batch)`` without gradients, or `training_step` where there is none.

    It returns the loss, or a mapping of metrics (numbers or scalar tensors); their means over samples are recorded.

    Arguments:
        precision: "32-true" computes in the types that model and batch have, "bf16-mixed" matrix products in bfloat16,
            by torch's autocast around the step function. Default: "32-true", whatever `train_batch` trains in.
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


@node(writes="metrics", effects="train")
def end_evaluation(
    model: torch.nn.Module, split: str, training_state: dict[str, Any], recorder: Recorder
) -> dict[str, float]:
    """Record the means, and put the training modes and the random numbers back.

    Writes:
        metrics: name -> mean over the samples, as Python numbers: ``{"val/loss": 0.31}``.
    """
    metrics = {f"{split}/{name}": value for name, value in recorder.means(split).take("whole").items()}
    for name, module in model.named_modules():
        module.training = training_state["modes"].get(name, True)
    restore_random(training_state["random"])
    if metrics:
        recorder.row(metrics)
    return metrics
