"""The row of metrics that `log` writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.nodes._optimizers import optimizers_of

if TYPE_CHECKING:
    from graphtrain.metrics.recorder import Recorder


def record_means(recorder: Recorder, means: Mapping[str, float], optimizer: Any, *, may_repeat: bool = False) -> None:
    """Record means, and the learning rate of each parameter group; nothing for no means.

    The rate of the first is `lr`, of others `lr/NAME`, by the `name` of the group or its number.

    The last row of a run may be written twice: at its end, and by `log` where the run is continued and `log` is due at
    once. The second one is left out.

    Arguments:
        may_repeat: True records a row that is just as the last one, as two bodies may end alike. Default: False.
    """
    if not means:
        return
    row = {**means, **recorder.means("train").running()}
    for name, rate in _rates(optimizer):
        row.setdefault(name, rate)
    if may_repeat or not recorder.is_last_row(row):
        recorder.row(row)


def _rates(optimizer: Any) -> Iterator[tuple[str, float]]:
    # An optimizer around others may have no groups.
    groups = [group for each in optimizers_of(optimizer) for group in getattr(each, "param_groups", ())]
    for number, group in enumerate(groups):
        if "lr" in group:
            yield ("lr" if number == 0 else f"lr/{group.get('name', number)}"), float(group["lr"])
