"""The end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.kind.trigger import Trigger
from graphtrain.nodes.log import record_means

if TYPE_CHECKING:
    from graphtrain.report.recorder import Recorder


@node(family="bookkeeping")
class Finish:
    """Decide when the run ends; a guard on its edges reads `finish.due`.

    It is due at once if a step function returns ``graphtrain.STOP``, and stays due until `after` is changed.

    A run that ends without any row of metrics records one over all of its training; see `log`.

    Arguments:
        after: the amount of training. Default: never. A run that has finished can be resumed with a larger amount, and
            then continues.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("finish", after=["3 epochs", "2 hours"])  # whichever comes first
    >>> graph.check()
    []
    """

    after: Trigger = Trigger("never")

    _recorder: Recorder

    def setup(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, optimizer: Any = None) -> None:
        """Do nothing: the guards on the edges decide."""

    def at_end(self, optimizer: Any = None) -> None:
        if not self._recorder.rows:
            record_means(self._recorder, self._recorder.means("train").take("log", ends=False), optimizer)
