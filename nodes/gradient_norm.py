"""The norm of the gradients, as a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.kind import node
from graphtrain.kind.parameter import Above
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import names_of, norms_of, optimizers_of, parameters_of

if TYPE_CHECKING:
    import torch

    from graphtrain.report.recorder import Means, Recorder
else:
    torch = lazy_import("torch")


@node(observer=True, family="gradient")
class GradientNorm:
    """Record the total norm of the gradients of `optimizer`, as the metric `gradient_norm`.

    Rows of `log` contain its mean over the steps since the last row, and those of epochs the mean over the steps of the
    epoch, `epoch/gradient_norm`. The values stay on the device until a row is recorded.

    Arguments:
        norm_type: the order of the norm. Default: 2; inf takes the largest absolute value.
        per_parameter: True also records the norm of each parameter, as ``gradient_norm/layer.weight``. Parameters of
            the `model` are named as in it, others by their group and index in the optimizer. Default: False.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("gradient_norm").set("gradient_norm", per_parameter=True)
    >>> graph.check()
    []
    """

    norm_type: Annotated[float, Above(0)] = 2.0
    per_parameter: bool = False

    _optimizers: tuple[Any, ...]
    _model: Any
    _means: Means

    def setup(self, optimizer: Any, recorder: Recorder, model: Any = None) -> None:
        self._optimizers, self._model = optimizers_of(optimizer), model
        self._means = recorder.means("train", ("log", "epoch"))

    def __call__(self) -> None:
        parameters = [parameter for parameter in parameters_of(self._optimizers) if parameter.grad is not None]
        if not parameters:
            return
        norms = norms_of([parameter.grad for parameter in parameters if parameter.grad is not None], self.norm_type)
        names, values = ["gradient_norm"], torch.linalg.vector_norm(norms, self.norm_type).reshape(1)
        if self.per_parameter:
            names += [f"gradient_norm/{name}" for name in names_of(parameters, self._model, self._optimizers)]
            values = torch.cat([values, norms])
        self._means.add((names, values), 1)
