"""Forward and backward for one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from graphtrain.kind import StepFunction, node
from graphtrain.metrics.recorder import Means, Recorder
from graphtrain.nodes._compiled import Compiled
from graphtrain.nodes._precision import Precision, autocast_of
from graphtrain.nodes._step_result import loss_and_metrics


@node(writes="loss", effects="backward", keeps="keep")
class TrainBatch:
    """Call ``training_step(model, batch)``, divide its loss by `window`, and run backward.

    Reads:
        training_step: returns the loss, a scalar tensor, or a mapping with `loss` and metrics (numbers or scalars).
        window: backward passes in one step of the optimizer; with 1 the loss is not divided.

    Arguments:
        precision: "32-true" computes in the types that model and batch have, "bf16-mixed" matrix products in bfloat16,
            by torch's autocast around `training_step`; weights, gradients and optimizer stay in float32. Default:
            "32-true".
        compile: True runs `training_step`, and its backward, through ``torch.compile``: the start takes longer, from
            seconds to minutes, and numbers differ, in the last bits and where random ones are drawn, as by dropout. The
            model stays as it is, with its names, and so does evaluation. Every shape of a batch, and every Python
            number in it, is compiled by itself, so that the result of a batch does not depend on those before it and a
            resume stays exact; beyond ``torch._dynamo.config.recompile_limit`` (8) they run uncompiled, and which do
            depends on the batches before: pad to a few. Of a function that asks for more, such as `step`, Python
            numbers are compiled in with their first value, and treated as variables from their second or third on.
            Default: False.
        keep: what `training_step` returns for slots and an epoch does not clear. Default: none.

    Writes:
        loss: the loss before the division, detached.

    More of what `training_step` returns is written to slots by `writes` of the node, as in ``writes = { hidden =
    "hidden" }``: tensors detached, and not among the metrics. A `training_step` that asks for `hidden` is given it.

    Raises:
        UsageError: what `training_step` returned is no loss, the device has no such precision, or there is no compiler.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("train_batch", precision="bf16-mixed")
    >>> graph.check()
    []
    """

    precision: Precision = "32-true"
    compile: bool = False
    keep: tuple[str, ...] = ()

    row_prefixes: ClassVar[tuple[str, ...]] = ()

    _means: Means
    _around: Callable[[Any, Any, Any], Any] | None  # calls the step function; None for a plain call

    def setup(self, recorder: Recorder, device: torch.device) -> None:
        self._means = recorder.means("train", ("log", "epoch"))
        autocast = autocast_of(self.precision, device)
        call = Compiled() if self.compile else None
        self._around = call if autocast is None else _under(autocast, call)

    def __call__(self, model: Any, batch: Any, training_step: StepFunction, samples: int, window: int = 1) -> Any:
        if self._around is None:
            result = training_step(model, batch)
        else:
            result = self._around(training_step, model, batch)
        loss, metrics = loss_and_metrics(result, "training_step")
        if window == 1:  # a division costs 5 us with its backward
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            (loss / window).backward()  # type: ignore[no-untyped-call]
        detached = loss.detach()
        self._means.add({"loss": loss, **metrics} if metrics else detached, samples)
        return detached


def _under(autocast: torch.autocast, call: Compiled | None) -> Callable[[Any, Any, Any], Any]:
    def under(function: Any, model: Any, batch: Any) -> Any:
        with autocast:
            return function(model, batch) if call is None else call(function, model, batch)

    return under
