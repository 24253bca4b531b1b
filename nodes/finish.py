"""Where a run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from graphtrain.kind import node
from graphtrain.kind.trigger import Trigger
from graphtrain.nodes.log import record_means

if TYPE_CHECKING:
    from graphtrain.report.recorder import Recorder


@node(family="bookkeeping")
class Finish:
    """Decide when the run has done enough; a guard on its edges asks `finish.due`.

    It is due at once where a step function returns ``graphtrain.STOP``, and stays so until `after` is another amount.

    A run that ends without a single row of metrics records one, of all that it trained; see `log`.

    Arguments:
        after: the amount of training. Default: never. It is not latched: a run that is resumed with a larger amount
            trains on.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("finish", after=["3 epochs", "2 hours"])  # whichever comes first
    >>> graph.check()
    []
    """

    after: Trigger = Trigger("never")

    row_prefixes: ClassVar[tuple[str, ...]] = ("",)

    _recorder: Recorder

    def setup(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, optimizer: Any = None) -> None:
        """Nothing: its edge decides."""

    def at_end(self, optimizer: Any = None) -> None:
        if not self._recorder.rows:
            record_means(self._recorder, self._recorder.means("train").peek("log"), optimizer)
