"""Adaptive gradient clipping, relative to the norm of the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.errors import UsageError
from graphtrain.kind import node
from graphtrain.kind.parameter import Above
from graphtrain.lazy import lazy_import
from graphtrain.names import plainly_named, quoted, suggestion
from graphtrain.nodes._optimizers import optimizers_of, parameters_of

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(effects="clip", optional="max_ratio")
class ClipAdaptive:
    """Scale the gradient of each unit so that its norm is at most `max_ratio` times the norm of its weights.

    A unit is an entry of the first dimension of a parameter, such as the weights of one output of a linear or
    convolutional layer; a one-dimensional parameter, such as a bias, is one unit.
    Source: Brock et al., "High-performance large-scale image recognition without normalization", 2021, who exclude the
    last layer.

    Arguments:
        max_ratio: the largest ratio of the two norms. Default: inf, no clipping; the node then costs nothing. The
            overlay `clip_adaptive` sets 0.01.
        least_norm: lower bound for the norm of the weights, so that weights initialized to zero can be trained.
            Default: 0.001.
        leave_out: parameters of `model` that are not clipped, by prefix, such as ``["head"]`` for ``head.weight`` and
            ``head.bias``. Default: none.

    Raises:
        UsageError: `leave_out` names no parameter of the model.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("clip_adaptive").set("clip_adaptive", max_ratio=0.1)
    >>> graph.check()
    []
    """

    max_ratio: Annotated[float, Above(0)] = math.inf
    least_norm: Annotated[float, Above(0)] = 1e-3
    leave_out: tuple[str, ...] = ()

    _optimizers: tuple[Any, ...]
    _left_out: frozenset[int]

    def setup(self, optimizer: Any, model: Any = None) -> None:
        self._optimizers = optimizers_of(optimizer)
        named = dict(plainly_named(model.named_parameters())) if isinstance(model, torch.nn.Module) else {}
        left_out = {
            prefix: [name for name in named if name == prefix or name.startswith(f"{prefix}.")]
            for prefix in self.leave_out
        }
        for prefix, names in left_out.items():
            if not names:
                raise UsageError(
                    f"clip_adaptive.leave_out: `{prefix}` is neither a parameter nor a module with parameters",
                    suggestion(prefix, named) or f"its parameters are {quoted(named, 4)}",
                )
        self._left_out = frozenset(id(named[name]) for names in left_out.values() for name in names)

    def __call__(self) -> None:
        with torch.no_grad():
            for parameter in parameters_of(self._optimizers):
                gradient = parameter.grad
                if gradient is None or id(parameter) in self._left_out:
                    continue
                if type(gradient).__name__ == "DTensor":
                    _clip_sharded(parameter, self.least_norm, self.max_ratio)
                    continue
                largest = _norms_of_units(parameter).clamp_(min=self.least_norm).mul_(self.max_ratio)
                norms = _norms_of_units(gradient).clamp_(min=torch.finfo(gradient.dtype).tiny)
                gradient.mul_((largest / norms).clamp_(max=1.0))


def _norms_of_units(tensor: torch.Tensor) -> torch.Tensor:
    of_unit = tuple(range(1, tensor.ndim)) or None
    norms: torch.Tensor = torch.linalg.vector_norm(tensor, dim=of_unit, keepdim=True)
    return norms


def _clip_sharded(parameter: torch.Tensor, least_norm: float, max_ratio: float) -> None:
    """Clip the units of a sharded gradient; a parameter of one dimension is a unit of which each rank has a part.

    Raises:
        UsageError: the units are divided otherwise.
    """
    from graphtrain.ranks import sharded  # which few runs need

    gradient = parameter.grad
    assert gradient is not None, "asked before"
    if sharded.divided_dimension(gradient) not in (0, None):
        raise UsageError(
            f"clip_adaptive: of a parameter of shape {tuple(parameter.shape)} every unit is divided among ranks, along "
            f"the dimension {sharded.divided_dimension(gradient)}",
            "shard it along its first dimension, as fully_shard does; or leave it out by `leave_out`",
        )
    weights, values = sharded.local_of(parameter), sharded.local_of(gradient)
    if parameter.ndim > 1:
        of_weights, norms = _norms_of_units(weights), _norms_of_units(values)
    else:
        of_weights, norms = sharded.whole_norms([parameter, gradient], 2.0)
    largest = of_weights.clamp(min=least_norm).mul(max_ratio)
    values.mul_((largest / norms.clamp(min=torch.finfo(values.dtype).tiny)).clamp(max=1.0))
