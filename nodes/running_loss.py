"""The mean loss of the last steps, as a metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above, Metric

if TYPE_CHECKING:
    from graphtrain.report.recorder import Means, Recorder


@node(observer=True, family="bookkeeping")
class RunningLoss:
    """Record the mean of the loss over the last windows, in rows of `log` as ``running/loss``.

    A visit ends a window, whose loss is the mean over the samples since the previous visit. All windows have the same
    weight, so a row shows the current loss, however far apart rows are. A dropped window, as after an overflow in
    `fp16`, is added to the next one. Losses stay on the device until a row is recorded.

    Source: the running loss in the progress bar of Lightning 1.x.

    Arguments:
        windows: number of windows to average over; at the beginning, all windows so far. Default: 20.
        metric: another training metric, recorded as ``running/NAME``; each node has its own. If no window has it, this
            is reported once. Default: the loss.

    Guard fields:
        ended: number of windows that have ended.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("running_loss").set("running_loss", windows=100)
    >>> graph.check()
    []
    """

    windows: Annotated[int, Above(0)] = 20
    metric: Annotated[str, Metric(followed=True)] = "loss"

    ended: int = progress(0, adds=1)

    _means: Means

    def setup(self, recorder: Recorder, notify: Callable[[str], None]) -> None:
        def report(recorded: set[str]) -> None:
            known = ", ".join(sorted(recorded))
            notify(f"running_loss: the last windows have no `{self.metric}`; they have {known}")

        self._means = recorder.means("train")
        self._means.follow(self.metric, self.windows, self, report)

    def __call__(self) -> None:
        self._means.end_window(self.metric, self.ended % self.windows)
        self.ended += 1
