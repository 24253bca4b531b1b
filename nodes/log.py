"""Rows of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.kind.trigger import Trigger
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import optimizers_of

if TYPE_CHECKING:
    from graphtrain.nodes import _metric_objects as objects_of
    from graphtrain.program.agreement import Agreement
    from graphtrain.report.recorder import Means, Recorder
else:
    objects_of = lazy_import("graphtrain.nodes._metric_objects")


@node(observer=True, synchronises=True)
class Log:
    """Record the means since the last row, weighted by samples, and the learning rates.

    At the end of the run, a last row covers the steps since the previous row. If the run is continued later, the next
    row ignores it, and has the means since the row before it. A nested graph also ends with such a row, and its next
    run starts from zero, so that no mean covers two folds. Losses stay on the device until a row is recorded, and are
    then transferred together.

    Reads:
        metric_objects: the values of those whose names have no prefix are recorded in the same row, and the objects are
            reset, except by the row at the end of the run. Default: none.

    Arguments:
        every: when to record a row. Default: every 50 steps. With "never", there is one at the end of the run only if
            the run recorded no other.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("log", every="1 steps")
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("50 steps")

    _means: Means
    _recorder: Recorder
    _objects: Mapping[str, Any] | None
    _ranks: Agreement | None

    def setup(
        self, recorder: Recorder, metric_objects: Mapping[str, Any] | None = None, ranks: Agreement | None = None
    ) -> None:
        self._recorder, self._objects, self._ranks = recorder, metric_objects, ranks
        self._means = recorder.means("train")

    def __call__(self, optimizer: Any = None) -> None:
        self._record(optimizer)

    def _record(self, optimizer: Any, *, ends: bool = True, may_repeat: bool = False) -> None:
        means = self._means.take("log", ends=ends)
        if self._objects:
            objects, recorder, ranks = self._objects, self._recorder, self._ranks
            means = means | objects_of.recorded(objects, objects_of.LOG, recorder, ranks, means, ends=ends)
        record_means(self._recorder, means, optimizer, may_repeat=may_repeat)

    def at_end(self, optimizer: Any = None) -> None:
        if not self.every.is_never or not self._recorder.rows:
            self._record(optimizer, ends=False)

    def at_body_end(self, optimizer: Any = None) -> None:
        if not self.every.is_never:
            self._record(optimizer, may_repeat=True)


def record_means(recorder: Recorder, means: Mapping[str, float], optimizer: Any, *, may_repeat: bool = False) -> None:
    """Record means, if there are any, and the current learning rate of each parameter group.

    The last row of a run would be written twice if the run is continued and `log` is due at once. The second one is
    left out, unless it `may_repeat`, since two bodies may end with equal rows.
    """
    if not means:
        return
    row = {**means}
    # An optimizer that wraps others may have no groups.
    groups = [group for each in optimizers_of(optimizer) for group in getattr(each, "param_groups", ())]
    for number, group in enumerate(groups):
        if "lr" in group:
            row.setdefault("lr" if number == 0 else f"lr/{group.get('name', number)}", float(group["lr"]))
    recorder.row(row, may_repeat=may_repeat)
