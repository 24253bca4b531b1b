"""Calling the user's training step: what the kinds that do so have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from graphtrain.kind import progress
from graphtrain.kind.declaration import Ask
from graphtrain.kind.parameter import Precision
from graphtrain.lazy import lazy_import
from graphtrain.nodes._precision import Around, around
from graphtrain.nodes._step_result import loss_and_metrics, metrics_of, without_ask

if TYPE_CHECKING:
    from torch import Tensor

    from graphtrain.nodes import _compiled as compiling
    from graphtrain.report.recorder import Means, Recorder
else:
    compiling = lazy_import("graphtrain.nodes._compiled")


class CallsTrainingStep:
    """What the kinds that call `training_step` have in common, for a kind of your own to extend.

    The precision in which it is called, what it asks for beside its result, and the means of its metrics, of which rows
    of `log` and of epochs are made. A kind that has a parameter `compile`, a bool, can compile the step.

    Arguments:
        precision: as of `train_batch`. Default: "32-true".

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

    asking: str = progress("", in_digest=False)  # of this rank

    row_prefixes: ClassVar[tuple[str, ...]] = ()

    _means: Means
    _prefix: str  # of the names of metrics
    _around: Around | None
    _asks: Callable[[Ask], None] | None
    _report: Callable[[str], None] | None

    def setup(
        self,
        recorder: Recorder,
        device: Any,
        notify: Callable[[str], None] | None = None,
        metric_prefix: str = "",
        asks: Callable[[Ask], None] | None = None,
    ) -> None:
        self._prefix, self._asks, self._report = metric_prefix, asks, notify
        self._means = recorder.means("train", ("log", "epoch"))
        compiled = compiling.Compiled() if getattr(self, "compile", False) else None
        self._around = self._wrapped(around(self.precision, device, compiled))

    def _wrapped(self, call: Around | None) -> Around | None:
        """What calls the step function; None for a plain call. A kind that looks at the result first wraps it."""
        return call

    def result_of(self, training_step: Any, model: Any, batch: Any) -> Any:
        """Call the step function; returns what it returns, but for what it asks for, which is asked for."""
        result = training_step(model, batch) if self._around is None else self._around(training_step, model, batch)
        return without_ask(result, self._asks)

    def loss_of(self, training_step: Any, model: Any, batch: Any, samples: int | None = None) -> Any:
        """Call the step function; returns the loss, with its graph.

        Arguments:
            samples: of the batch: its loss and its other metrics are recorded with that weight. Default: they are not.

        Raises:
            UsageError: it returned no loss.
        """
        loss, metrics = loss_and_metrics(self.result_of(training_step, model, batch), "training_step")
        if samples is not None:
            self._means.add(self._named(loss, metrics), samples)
        return loss

    def record(self, result: Any, samples: int) -> None:
        """Record a result that need not have a loss: a mapping of metrics, a loss alone, or nothing.

        Raises:
            UsageError: it is no such result.
        """
        if result is None or isinstance(result, Mapping):
            self._means.add(self._prefixed(metrics_of(result or {}, "training_step")), samples)
        else:
            self._means.add(self._named(*loss_and_metrics(result, "training_step")), samples)

    def _named(self, loss: Tensor, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._prefixed({"loss": loss, **metrics})

    def _prefixed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {f"{self._prefix}{name}": value for name, value in values.items()} if self._prefix else values
