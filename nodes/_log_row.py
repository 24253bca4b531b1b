"""The row of metrics that `log` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphtrain.metrics.recorder import Recorder


def record_means(recorder: Recorder, means: Mapping[str, float], optimizer: Any, *, may_repeat: bool = False) -> None:
    """Record means, and the learning rate of the first parameter group; nothing for no means.

    The last row of a run may be written twice: at its end, and by `log` where the run is continued and `log` is due at
    once. The second one is left out.

    Arguments:
        may_repeat: True records a row that is just as the last one, as two bodies may end alike. Default: False.
    """
    if not means:
        return
    row = dict(means)
    # An optimizer around others may have none.
    if "lr" in next(iter(getattr(optimizer, "param_groups", ())), {}):
        row.setdefault("lr", float(optimizer.param_groups[0]["lr"]))
    if may_repeat or not recorder.is_last_row(row):
        recorder.row(row)
