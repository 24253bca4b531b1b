"""Forward and backward for one batch."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain.kind import StepFunction, node
from graphtrain.metrics.recorder import Means, Recorder
from graphtrain.nodes.precision import Precision, autocast_of
from graphtrain.nodes.step_result import loss_and_metrics


@node(writes="loss", effects="backward")
class TrainBatch:
    """Call ``training_step(model, batch)``, divide its loss by `window`, and run backward.

    Reads:
        training_step: returns the loss, a scalar tensor, or a mapping with `loss` and metrics (numbers or scalars).
        window: backward passes in one step of the optimizer; with 1 the loss is not divided.

    Arguments:
        precision: "32-true" computes in the types that model and batch have, "bf16-mixed" matrix products in bfloat16,
            by torch's autocast around `training_step`; weights, gradients and optimizer stay in float32. Default:
            "32-true".

    Writes:
        loss: the loss before the division, detached.
    """

    precision: Precision = "32-true"

    _means: Means
    _autocast: torch.autocast | None

    def setup(self, recorder: Recorder, device: torch.device) -> None:
        self._means = recorder.means("train", ("log", "epoch"))
        self._autocast = autocast_of(self.precision, device)

    def __call__(self, model: Any, batch: Any, training_step: StepFunction, samples: int, window: int = 1) -> Any:
        if self._autocast is None:
            result = training_step(model, batch)
        else:
            with self._autocast:
                result = training_step(model, batch)
        loss, metrics = loss_and_metrics(result, "training_step")
        if window == 1:  # a division costs 5 us with its backward
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            (loss / window).backward()  # type: ignore[no-untyped-call]
        detached = loss.detach()
        self._means.add({"loss": detached, **metrics} if metrics else detached, samples)
        return detached
