"""Forward and backward for one batch."""

from __future__ import annotations

from typing import Any

from graphtrain.kind import StepFunction, node
from graphtrain.metrics.recorder import Means, Recorder
from graphtrain.nodes.step_result import loss_and_metrics


@node(writes="loss", effects="backward")
class TrainBatch:
    """Call ``training_step(model, batch)``, divide its loss by `window`, and run backward.

    Reads:
        training_step: returns the loss, a scalar tensor, or a mapping with `loss` and metrics (numbers or scalars).
        window: backward passes in one step of the optimizer; with 1 the loss is not divided.

    Writes:
        loss: the loss before the division, detached.
    """

    _means: Means

    def setup(self, recorder: Recorder) -> None:
        self._means = recorder.means("train", ("log", "epoch"))

    def __call__(self, model: Any, batch: Any, training_step: StepFunction, samples: int, window: int = 1) -> Any:
        loss, metrics = loss_and_metrics(training_step(model, batch), "training_step")
        if window == 1:  # a division costs 5 us with its backward
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            (loss / window).backward()  # type: ignore[no-untyped-call]
        detached = loss.detach()
        self._means.add({"loss": detached, **metrics} if metrics else detached, samples)
        return detached
