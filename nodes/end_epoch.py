"""The end of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    from graphtrain.nodes import _metric_objects as objects_of
    from graphtrain.program.agreement import Agreement
    from graphtrain.report.recorder import Means, Recorder
else:
    objects_of = lazy_import("graphtrain.nodes._metric_objects")


@node(family="bookkeeping", synchronises=True)
class EndEpoch:
    """Record the means over the epoch, weighted by samples, as ``epoch/loss`` and so on.

    Reads:
        metric_objects: the values of those named ``epoch/...`` are recorded in the same row, and the objects are reset.
            Default: none.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit")
    >>> [str(edge) for edge in graph.edges["decide"] if edge.target == "end_epoch"]
    ['end_epoch if epoch_done']
    """

    _means: Means
    _recorder: Recorder
    _objects: Mapping[str, Any] | None
    _ranks: Agreement | None

    def setup(
        self, recorder: Recorder, metric_objects: Mapping[str, Any] | None = None, ranks: Agreement | None = None
    ) -> None:
        self._recorder, self._objects, self._ranks = recorder, metric_objects, ranks
        self._means = recorder.means("train")

    def __call__(self) -> None:
        means = {f"epoch/{name}": value for name, value in self._means.take("epoch").items()}
        if self._objects:
            means |= objects_of.recorded(self._objects, objects_of.EPOCH, self._recorder, self._ranks, means)
        if means:
            self._recorder.row(means)
