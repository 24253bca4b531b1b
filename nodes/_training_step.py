"""Calling the user's training step: what it may return, and the base of the kinds that call it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind.declaration import StepRequest
from graphtrain.kind.parameter import Precision
from graphtrain.lazy import lazy_import
from graphtrain.nodes._precision import StepCaller, step_caller
from graphtrain.report.values import check_metric, described, detached

if TYPE_CHECKING:
    import torch

    from graphtrain.nodes import _metric_objects as objects_of
    from graphtrain.nodes._metric_objects import MetricObjects
    from graphtrain.report.recorder import Means, Recorder
else:
    torch = lazy_import("torch")
    objects_of = lazy_import("graphtrain.nodes._metric_objects")


def pass_on_request(result: Any, asks: Callable[[StepRequest], None] | None) -> Any:
    """The result of a step function without STOP or END_EPOCH, with which `asks` is called."""
    if isinstance(result, StepRequest):
        result = (None, result)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], StepRequest)):
        return result
    if asks is not None:
        asks(result[1])
    return result[0]


def loss_and_metrics(result: Any, function: str) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """The loss and the other metrics in the result of a step function.

    Raises:
        UsageError: the result is neither a scalar tensor nor a mapping with a scalar tensor `loss`.
    """
    if isinstance(result, torch.Tensor) and result.ndim == 0:
        return result, {}
    loss = result.get("loss") if isinstance(result, Mapping) else None
    if isinstance(loss, torch.Tensor) and loss.ndim == 0:
        metrics = {name: value for name, value in result.items() if name != "loss"}
        return loss, metrics_of(metrics, function)
    returned = described(result)
    if isinstance(result, Mapping):
        returned = f"a mapping whose `loss` is {described(loss)}" if "loss" in result else "a mapping without `loss`"
    raise UsageError(
        f"`{function}` must return a scalar loss, or a mapping with `loss`; it returned {returned}",
        'end it with `return loss`, a tensor without `.item()`, or `return {"loss": loss, "accuracy": accuracy}`; None '
        "skips a batch with train_batch.skip_none = true",
    )


def count_and_metrics(result: Mapping[str, Any], name: str, samples: int, function: str) -> tuple[Any, dict[str, Any]]:
    """The count over which the loss of a result is a sum, a number or a scalar tensor; and the other entries."""
    rest = dict(result)
    count = rest.pop(name, samples if name == "samples" else None)
    if isinstance(count, torch.Tensor):
        return detached(count).reshape(()), rest
    if count is None or not 0 <= count < math.inf:
        raise UsageError(
            f"`{function}` returned {name} = {count}, the count over which its loss is a sum",
            f'return the count, as in {{"loss": loss, "{name}": ...}}; or set per = "samples", which needs none',
        )
    return count, rest


def metrics_of(result: Mapping[str, Any], function: str, remedy: str = "") -> Mapping[str, Any]:
    """Check that every value in the result of a step function can be a metric, and return the result."""
    for name, value in result.items():
        check_metric(name, value, f"`{function}` returned", remedy)
    return result


class CallsTrainingStep:
    """Base class of the kinds that call `training_step`, for your own kinds to extend.

    It calls the function in `precision`, handles `STOP` and `END_EPOCH`, and records the means of its metrics for the
    rows of `log` and of epochs. A kind with a bool parameter `compile` can compile the step.

    Arguments:
        precision: as in `train_batch`. Default: "32-true".

    >>> from graphtrain import CallsTrainingStep, Graph, StepFunction, node
    >>> @node(writes="loss", effects="backward")
    ... class SquaredBatch(CallsTrainingStep):
    ...     '''Train with the square of the loss.'''
    ...     def __call__(self, model, batch, training_step: StepFunction, samples, window=1):
    ...         loss = self.loss_of(training_step, model, batch, samples)
    ...         (loss**2 / window).backward()
    ...         return loss.detach()
    >>> Graph.load("fit").set("train_batch", use=SquaredBatch).check()
    []
    """

    precision: Precision = "32-true"

    _means: Means
    _prefix: str  # of the names of metrics
    _caller: StepCaller | None
    _asks: Callable[[StepRequest], None] | None
    _objects: MetricObjects | None

    def setup(
        self,
        recorder: Recorder,
        device: Any,
        metric_prefix: str = "",
        asks: Callable[[StepRequest], None] | None = None,
        metric_objects: Mapping[str, Any] | None = None,
    ) -> None:
        self._prefix, self._asks = metric_prefix, asks
        self._objects = None
        if metric_objects:
            epoch, log = objects_of.EPOCH, objects_of.LOG
            prefixes = {metric_prefix: log, f"{epoch}/{metric_prefix}": epoch}
            self._objects = objects_of.MetricObjects(metric_objects, prefixes, recorder)
        self._means = recorder.means("train", ("log", "epoch"))
        self._caller = step_caller(self.precision, device, compile=getattr(self, "compile", False))

    def result_of(self, training_step: Any, model: Any, batch: Any) -> Any:
        """Call the step function, and return its result; STOP and END_EPOCH are handled, and left out of it."""
        result = training_step(model, batch) if self._caller is None else self._caller(training_step, model, batch)
        return pass_on_request(result, self._asks)

    def loss_of(self, training_step: Any, model: Any, batch: Any, samples: int | None = None) -> Any:
        """Call the step function; returns the loss, with its graph.

        Arguments:
            samples: the size of the batch, the weight of its loss and metrics in means. Default: nothing is recorded.

        Raises:
            UsageError: it returned no loss. A kind with `skip_none = True` may return None, and gets None.
        """
        result = self.result_of(training_step, model, batch)
        if result is None and getattr(self, "skip_none", False):
            return None
        if self._objects is not None:
            objects = self._objects
            result = objects.drop_inputs(result) if samples is None else objects.update(result, "training_step")
        loss, metrics = loss_and_metrics(result, "training_step")
        if samples is not None:
            self._means.add(self._prefixed({"loss": loss, **metrics}), samples)
        return loss

    def record(self, result: Any, samples: int) -> None:
        """Record the result of a step function: a mapping of metrics, a scalar loss, or None.

        Arguments:
            samples: the number of samples in the batch, by which the means are weighted.

        Raises:
            UsageError: it is anything else.
        """
        if self._objects is not None:
            result = self._objects.update(result, "training_step")
        if result is None or isinstance(result, Mapping):
            self._means.add(self._prefixed(metrics_of(result or {}, "training_step")), samples)
        else:
            self._means.add(self._prefixed({"loss": loss_and_metrics(result, "training_step")[0]}), samples)

    def _prefixed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {f"{self._prefix}{name}": value for name, value in values.items()} if self._prefix else values
