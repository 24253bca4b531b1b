"""A metric that a node waits for."""

from __future__ import annotations

from collections.abc import Mapping

from graphtrain.errors import UnknownMetricError
from graphtrain.names import suggestion


def monitored(row: Mapping[str, float], monitor: str, parameter: str, *, is_evaluation: bool) -> float | None:
    """The value of a metric in a row; None where the row is of something else.

    Arguments:
        parameter: what names the metric, such as ``"early_stop.monitor"``.

    Raises:
        UnknownMetricError: the row is that of the evaluation which is named, and has no such metric.
    """
    from graphtrain.metrics.values import ROW_POSITION

    if monitor in row:
        return float(row[monitor])
    group, slash, _ = monitor.rpartition("/")
    given = [name for name in row if name not in ROW_POSITION]
    if is_evaluation and slash and any(name.startswith(f"{group}/") for name in given):
        raise UnknownMetricError(
            f"the validation gives no metric `{monitor}`, which {parameter} names; it gives {', '.join(given)}",
            suggestion(monitor, given),
        )
    return None
