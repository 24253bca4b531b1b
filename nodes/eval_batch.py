"""Evaluation of one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import StepFunction, node
from graphtrain.kind.declaration import StepRequest
from graphtrain.kind.parameter import Precision
from graphtrain.lazy import lazy_import
from graphtrain.nodes._precision import StepCaller, step_caller
from graphtrain.nodes._training_step import count_and_metrics, metrics_of, pass_on_request
from graphtrain.nodes.end_evaluation import of_loader

if TYPE_CHECKING:
    import torch

    from graphtrain.nodes import _metric_objects as objects_of
    from graphtrain.nodes._metric_objects import MetricObjects
    from graphtrain.report.recorder import Recorder
else:
    torch = lazy_import("torch")
    objects_of = lazy_import("graphtrain.nodes._metric_objects")


@node(family="compute")
class EvalBatch:
    """Call ``validation_step(model, batch)`` without gradients, or `training_step` if there is none.

    It returns the loss, or a mapping of metrics (numbers or scalar tensors); their means over samples are recorded, for
    each loader if there are several.

    If it returns ``metrics, graphtrain.END_EPOCH``, or END_EPOCH alone, the evaluation ends with this batch; with
    ``graphtrain.STOP`` the run ends after the evaluation.

    Reads:
        metric_objects: those whose names begin with the name of the evaluation, such as ``val/f1``, are updated with
            the values that the step function returns under the names of the parameters of their `update`. Default:
            none.

    Arguments:
        precision: as in `train_batch`. Default: the precision in which the graph trains, or "32-true".
        per: what the loss is a sum over, as in `train_batch`; metrics are means over it. If a `validation_step` does
            not return this count, its loss is a mean over samples. Default: none, the loss is a mean.

    Raises:
        UsageError: there is no step function, it did not return metrics, or the device does not support the precision.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("evaluate").set("eval_batch", precision="bf16-mixed")
    >>> graph.check()
    []
    """

    precision: Precision | None = None
    per: str | None = None

    _recorder: Recorder
    _loader: Callable[[], str] | None  # returns the name of the loader of the batch, if there are several
    _caller: StepCaller | None
    _asks: Callable[[StepRequest], None] | None
    _all_objects: Mapping[str, Any] | None
    _objects: MetricObjects | None  # of the evaluation that is running
    _step_names: Mapping[str, str]  # the names of the step functions in messages

    def setup(
        self,
        recorder: Recorder,
        device: Any,
        current_loader: Callable[[], str] | None = None,
        asks: Callable[[StepRequest], None] | None = None,
        step_names: Mapping[str, str] = MappingProxyType({}),
        training_precision: Precision = "32-true",
        metric_objects: Mapping[str, Any] | None = None,
    ) -> None:
        self._all_objects, self._objects = metric_objects, None
        self._recorder, self._loader, self._asks = recorder, current_loader, asks
        self._step_names = step_names
        self._caller = step_caller(self.precision or training_precision, device)

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
            raise UsageError(
                "there is neither a `validation_step` nor a `training_step` to evaluate with",
                "supply one of them, or what `reads` of the node names in its place",
            )
        with torch.no_grad():
            result = function(model, batch) if self._caller is None else self._caller(function, model, batch)
        name = "validation_step" if validation_step is not None else "training_step"
        name = self._step_names.get(name, name)
        if type(result) is tuple or isinstance(result, StepRequest):
            result = pass_on_request(result, self._asks)
            if result is None:
                return
        if result is None:
            raise UsageError(f"`{name}` must return a mapping of metrics, or a scalar loss; it returned None")
        if self._all_objects:
            if self._objects is None:
                self._objects = objects_of.MetricObjects(self._all_objects, {f"{split}/": split}, self._recorder)
            result = self._objects.update(result, name)
        remedy = "" if validation_step is not None else "supply a `validation_step` without it; or "
        metrics = metrics_of(result if isinstance(result, Mapping) else {"loss": result}, name, remedy)
        count: Any = samples
        sums: tuple[str, ...] = ()
        if self.per is not None and (validation_step is None or self.per in metrics):
            count, metrics = count_and_metrics(metrics, self.per, samples, name)
            sums = ("loss",)
        if self._loader is not None and (loader := self._loader()):
            metrics, sums = of_loader(loader, metrics), tuple(of_loader(loader, dict.fromkeys(sums)))
        self._recorder.means(split).add(metrics, count, sums=sums)

    def idle(self, model: Any, batch: Any, split: str, samples: int, *functions: Any) -> None:
        """Take part in the forward pass of a sharded model, on a rank without a batch, with the first of the round."""
        function = next(filter(None, functions))
        with torch.no_grad():
            _ = function(model, batch) if self._caller is None else self._caller(function, model, batch)
