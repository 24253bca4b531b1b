"""Recording the norm of the gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.kind import node
from graphtrain.kind.parameter import Above
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import gradients_of, norms_of, optimizers_of

if TYPE_CHECKING:
    import torch

    from graphtrain.report.recorder import Means, Recorder
else:
    torch = lazy_import("torch")


@node(effects="read", observer=True)
class GradientNorm:
    """Record the total norm of the gradients of `optimizer`, as the metric `gradient_norm`.

    Rows of `log` contain its mean over the steps since the last row, and those of epochs the mean over the steps of the
    epoch, `epoch/gradient_norm`. The values stay on the device until a row is recorded.

    Arguments:
        norm_type: the order of the norm. Default: 2; inf takes the largest absolute value.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("gradient_norm").set("gradient_norm", norm_type=float("inf"))
    >>> graph.check()
    []
    """

    norm_type: Annotated[float, Above(0)] = 2.0

    _optimizers: tuple[Any, ...]
    _means: Means

    def setup(self, optimizer: Any, recorder: Recorder) -> None:
        self._optimizers = optimizers_of(optimizer)
        self._means = recorder.means("train", ("log", "epoch"))

    def __call__(self) -> None:
        if gradients := gradients_of(self._optimizers):
            norms = norms_of(gradients, self.norm_type)
            self._means.add({"gradient_norm": torch.linalg.vector_norm(norms, self.norm_type)}, 1)
