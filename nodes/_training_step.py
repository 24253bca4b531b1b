"""Calling the user's training step: what it may return, and what the kinds that call it have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind.declaration import Ask
from graphtrain.kind.parameter import Precision
from graphtrain.lazy import lazy_import
from graphtrain.nodes._precision import Around, around
from graphtrain.report.values import check_metric, described, detached

if TYPE_CHECKING:
    import torch

    from graphtrain.nodes import _metric_objects as objects_of
    from graphtrain.nodes._metric_objects import MetricObjects
    from graphtrain.report.recorder import Means, Recorder
else:
    torch = lazy_import("torch")
    objects_of = lazy_import("graphtrain.nodes._metric_objects")


def pass_on_request(result: Any, asks: Callable[[Ask], None] | None) -> Any:
    """What a step function returned beside STOP or END_EPOCH, which is asked for; a result without one as it is."""
    if isinstance(result, Ask):
        result = (None, result)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Ask)):
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
    """How many the loss of a result is a sum over, a number or a scalar tensor, and what else it holds."""
    rest = dict(result)
    count = rest.pop(name, samples if name == "samples" else None)
    if isinstance(count, torch.Tensor):
        return detached(count).reshape(()), rest
    if count is None or not 0 <= count < math.inf:
        raise UsageError(
            f"`{function}` returned {name} = {count}, over which its loss is a sum",
            f'return how many, as in {{"loss": loss, "{name}": ...}}; or set per = "samples", which needs nothing',
        )
    return count, rest


def metrics_of(result: Mapping[str, Any], function: str, remedy: str = "") -> Mapping[str, Any]:
    """The metrics of a step function's result, which they all are; an error at the first batch where one is none."""
    for name, value in result.items():
        check_metric(name, value, f"`{function}` returned", remedy)
    return result


class CallsTrainingStep:
    """Base class of the kinds that call `training_step`, for your own kinds to extend.

    It calls the function in the given precision, handles `STOP` and `END_EPOCH`, and records the means of its metrics
    for the rows of `log` and of epochs. A kind with a bool parameter `compile` can compile the step.

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
    _around: Around | None
    _asks: Callable[[Ask], None] | None
    _objects: MetricObjects | None

    def setup(
        self,
        recorder: Recorder,
        device: Any,
        metric_prefix: str = "",
        asks: Callable[[Ask], None] | None = None,
        metric_objects: Mapping[str, Any] | None = None,
    ) -> None:
        self._prefix, self._asks = metric_prefix, asks
        self._objects = None
        if metric_objects:
            epoch, log = objects_of.EPOCH, objects_of.LOG
            prefixes = {metric_prefix: log, f"{epoch}/{metric_prefix}": epoch}
            self._objects = objects_of.MetricObjects(metric_objects, prefixes, recorder)
        self._means = recorder.means("train", ("log", "epoch"))
        self._around = around(self.precision, device, compile=getattr(self, "compile", False))

    def result_of(self, training_step: Any, model: Any, batch: Any) -> Any:
        """Call the step function; returns what it returns, but for what it asks for, which is asked for."""
        result = training_step(model, batch) if self._around is None else self._around(training_step, model, batch)
        return pass_on_request(result, self._asks)

    def loss_of(self, training_step: Any, model: Any, batch: Any, samples: int | None = None) -> Any:
        """Call the step function; returns the loss, with its graph.

        Arguments:
            samples: of the batch: its loss and its other metrics are recorded with that weight. Default: they are not.

        Raises:
            UsageError: it returned no loss. With a parameter `skip_none` that is True, None is returned for None.
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
        """Record a result that need not have a loss: a mapping of metrics, a loss alone, or nothing.

        Raises:
            UsageError: it is no such result.
        """
        if self._objects is not None:
            result = self._objects.update(result, "training_step")
        if result is None or isinstance(result, Mapping):
            self._means.add(self._prefixed(metrics_of(result or {}, "training_step")), samples)
        else:
            self._means.add(self._prefixed({"loss": loss_and_metrics(result, "training_step")[0]}), samples)

    def _prefixed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {f"{self._prefix}{name}": value for name, value in values.items()} if self._prefix else values
