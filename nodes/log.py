"""A row of metrics now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from graphtrain.kind import node
from graphtrain.kind.trigger import Trigger
from graphtrain.nodes._log_row import record_means

if TYPE_CHECKING:
    from graphtrain.metrics.recorder import Means, Recorder


@node(observer=True, synchronises=True)
class Log:
    """Record the means since the last row, weighted by samples, and the learning rate of each parameter group.

    What was gathered since the last row is a row at the end of the run too, so that the last steps are not missing. To
    a run that is continued later that row makes no difference: the next one has the means since the one before. At the
    end of a nested graph it is a row as well, and the next one begins with none of it: no mean is of two folds. Losses
    stay on the device until a row is recorded: one transfer for all of them.

    Arguments:
        every: when to write a row. Default: every 50 steps. With "never" there is one at the end of the run only if it
            recorded no other.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("log", every="1 steps")
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("50 steps")

    row_prefixes: ClassVar[tuple[str, ...]] = ("",)

    _means: Means
    _recorder: Recorder

    def setup(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._means = recorder.means("train")

    def __call__(self, optimizer: Any = None) -> None:
        record_means(self._recorder, self._means.take("log"), optimizer)

    def at_end(self, optimizer: Any = None) -> None:
        if not self.every.is_never or not self._recorder.rows:
            record_means(self._recorder, self._means.peek("log"), optimizer)

    def at_body_end(self, optimizer: Any = None) -> None:
        if not self.every.is_never:
            record_means(self._recorder, self._means.take("log"), optimizer, may_repeat=True)
