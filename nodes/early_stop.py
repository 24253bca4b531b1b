"""Early stopping."""

import math
from collections.abc import Callable
from typing import Annotated

from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above
from graphtrain.nodes._monitor import FollowsMetric


@node(family="bookkeeping")
class EarlyStop(FollowsMetric):
    """Stop a run whose metric no longer improves; a guard reads `stop`.

    `patience` counts values of the metric, as in Lightning and Keras; with one validation per epoch, it counts epochs.

    Arguments:
        monitor: name of the metric. Default: "val/loss".
        mode: "min" if small values are good, "max" if large ones are. Default: by the name of the metric, "min" for
            loss, error, perplexity or bits, "max" for accuracy, F1, AUC, score; required for other names.
        min_delta: how much better than the best so far a value must be to count as an improvement. Default: 0, any
            amount.
        patience: stop after this many values in a row without an improvement. Default: 3.
        stopping_threshold: stop once a value is better than this. Default: never.
        divergence_threshold: stop once a value is worse than this. Default: never.
        check_finite: True stops at a value that is infinite or NaN. Default: True.
        min_epochs: minimum number of epochs before a run is stopped. Default: 0.

    Guard fields:
        recorded: there is a value that was not considered yet.
        waited: values in a row without an improvement.
        values: values considered so far.
        stop: the run should stop.

    Raises:
        UnknownMetricError: nothing records the metric.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("early_stop").set("early_stop", patience=5, min_delta=1e-3)
    >>> graph.check()
    []
    """

    min_delta: float = 0.0
    patience: Annotated[int, Above(0)] = 3
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None
    check_finite: bool = True
    min_epochs: float = 0.0

    best: float | None = progress(None)
    waited: int = progress(0)
    values: int = progress(0)

    _notify: Callable[[str], None]

    def setup(self, notify: Callable[[str], None]) -> None:
        self._notify = notify

    def __call__(self) -> None:
        if not self.recorded or self.value is None:
            return
        self.recorded = False
        self.values += 1
        if math.isnan(self.value) or not (self.best is None or self._is_better(self.value, self.best, self.min_delta)):
            self.waited += 1
        else:
            self.best, self.waited = self.value, 0
        if reason := self._reason():
            self._notify(f"early_stop: {self.monitor} {reason}")

    def _is_better(self, value: float, other: float, by: float = 0.0) -> bool:
        return value < other - by if self._mode == "min" else value > other + by

    @property
    def stop(self) -> bool:
        return bool(self._reason())

    def _reason(self) -> str:
        """Why the run should stop; empty if it should not."""
        value = self.value
        if value is None or not self.values:
            return ""
        if self.check_finite and not math.isfinite(value):
            return f"is {value}"
        if self.stopping_threshold is not None and self._is_better(value, self.stopping_threshold):
            return f"is {value:.6g}, better than {self.stopping_threshold:.6g}"
        if self.divergence_threshold is not None and self._is_better(self.divergence_threshold, value):
            return f"is {value:.6g}, worse than {self.divergence_threshold:.6g}"
        if self.waited >= self.patience:
            best = "" if self.best is None else f" on {self.best:.6g}"
            return f"has not improved{best} in {self.waited} {'value' if self.waited == 1 else 'values'}"
        return ""
