"""Calling the user's training step: what the kinds that do so have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from graphtrain.kind import progress
from graphtrain.kind.ask import Ask
from graphtrain.lazy import lazy_import
from graphtrain.nodes._precision import MODEL_DTYPES, Around, Precision, around
from graphtrain.nodes._step_result import loss_and_metrics, metrics_of, without_ask

if TYPE_CHECKING:
    from torch import Tensor

    from graphtrain.metrics.recorder import Means, Recorder
    from graphtrain.nodes import _compiled as compiling
    from graphtrain.nodes._compiled import Compiled
else:
    compiling = lazy_import("graphtrain.nodes._compiled")


class CallsTrainingStep:
    """The precision in which a kind calls `training_step`, what that asks for, and the means of its metrics."""

    precision: Precision = "32-true"

    asking: str = progress("", in_digest=False)  # which runs of earlier versions do not have

    row_prefixes: ClassVar[tuple[str, ...]] = ()

    model_dtypes: ClassVar[Mapping[str, str]] = MODEL_DTYPES

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
        self._around = self._wrapped(around(self.precision, device, self._compiled()))

    def _compiled(self) -> Compiled | None:
        """What compiles the step function; None where it is not compiled."""
        return None

    def _wrapped(self, call: Around | None) -> Around | None:
        """What calls the step function; None for a plain call. A kind that looks at the result first wraps it."""
        return call

    def _result(self, training_step: Any, model: Any, batch: Any) -> Any:
        """What the step function returns, but for what it asks for."""
        result = training_step(model, batch) if self._around is None else self._around(training_step, model, batch)
        return without_ask(result, self._asks)

    def _loss(self, training_step: Any, model: Any, batch: Any, samples: int | None = None) -> Any:
        """The loss of a batch; it and the other metrics are recorded where the batch has this many samples."""
        loss, metrics = loss_and_metrics(self._result(training_step, model, batch), "training_step")
        if samples is not None:
            self._means.add(self._named(loss, metrics), samples)
        return loss

    def _named(self, loss: Tensor, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._prefixed({"loss": loss, **metrics})

    def _prefixed(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {f"{self._prefix}{name}": value for name, value in values.items()} if self._prefix else values

    def _metrics(self, result: Any) -> Mapping[str, Any]:
        """The metrics of a result that need not have a loss: a mapping, a loss alone, or nothing."""
        if result is None or isinstance(result, Mapping):
            return self._prefixed(metrics_of(result or {}, "training_step"))
        return self._named(*loss_and_metrics(result, "training_step"))


class CompilesTrainingStep(CallsTrainingStep):
    """A kind that can compile it: where it computes the loss and nothing else."""

    compile: bool = False

    def _compiled(self) -> Compiled | None:
        return compiling.Compiled() if self.compile else None
