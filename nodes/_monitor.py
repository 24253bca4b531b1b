"""The base of kinds that follow a recorded metric."""

from collections.abc import Mapping

from graphtrain.kind import progress
from graphtrain.kind.parameter import Metric, Mode, known_mode


class FollowsMetric:
    """Keeps each value of a metric until the next visit."""

    monitor: Metric = "val/loss"
    mode: Mode | None = None

    recorded: bool = progress(False)
    value: float | None = progress(None)

    @property
    def _mode(self) -> Mode:
        return self.mode or known_mode(self.monitor) or "min"

    def on_metrics(self, row: Mapping[str, float], is_evaluation: bool) -> None:
        if self.monitor in row:
            self.value, self.recorded = float(row[self.monitor]), True
