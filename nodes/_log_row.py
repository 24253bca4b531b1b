"""The row of metrics that `log` writes."""

from __future__ import annotations

from typing import Any

from graphtrain.metrics.recorder import Means, Recorder


def record_since_last_row(recorder: Recorder, means: Means, optimizer: Any) -> None:
    """Record the means since the last row, and the learning rate of the first parameter group; nothing for no means."""
    values = means.take("log")
    if not values:
        return
    if hasattr(optimizer, "param_groups"):
        values.setdefault("lr", float(optimizer.param_groups[0]["lr"]))
    recorder.row(values)
