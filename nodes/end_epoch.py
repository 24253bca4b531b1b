"""Where an epoch ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from graphtrain.kind import node

if TYPE_CHECKING:
    from graphtrain.report.recorder import Means, Recorder


@node(family="bookkeeping", synchronises=True)
class EndEpoch:
    """Record the means of the epoch, weighted by samples, as ``epoch/loss`` and so on.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit")
    >>> [str(edge) for edge in graph.edges["decide"] if edge.target == "end_epoch"]
    ['end_epoch if epoch_done']
    """

    row_prefixes: ClassVar[tuple[str, ...]] = ("epoch/",)

    _means: Means
    _recorder: Recorder

    def setup(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._means = recorder.means("train")

    def __call__(self) -> None:
        means = self._means.take("epoch")
        if means:
            self._recorder.row({f"epoch/{name}": value for name, value in means.items()})
