"""Loss scaling for float16."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.errors import UsageError
from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above, Below
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import optimizers_of, parameters_of

if TYPE_CHECKING:
    import torch
    from torch.amp import GradScaler
else:
    torch = lazy_import("torch")


@node(effects="unscale")
class Unscale:
    """Divide the gradients of `optimizer` by the loss scale, and adapt the scale to overflows.

    In float16, small gradients underflow to 0 and large ones overflow. So the loss is multiplied by a scale, which is
    reduced when a gradient is not finite, and increased after a long time without an overflow. A guard reads `overflow`
    to drop such a window. Results equal those of ``torch.amp.GradScaler``, bit for bit. Each visit synchronizes with
    the device once.
    Source: Micikevicius et al., "Mixed precision training", 2018.

    Arguments:
        init_scale: initial scale. Default: 65536.
        growth_factor: factor for the scale after `growth_interval` windows without an overflow. Default: 2.
        backoff_factor: factor for the scale after an overflow, below 1. Default: 0.5.
        growth_interval: windows without an overflow before the scale grows. Default: 2000.

    Guard fields:
        overflow: a gradient of this window is not finite.
        scale: factor for the loss; `train_batch` reads it as `loss_scale`.
        overflows: windows with an overflow since the start.

    Raises:
        UsageError: gradients are in float16, or the scale has dropped to 0.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("fp16").set("unscale", init_scale=1024.0)
    >>> graph.check()
    []
    """

    init_scale: Annotated[float, Above(0), Below(math.inf)] = 65536.0
    growth_factor: Annotated[float, Above(1), Below(math.inf)] = 2.0
    backoff_factor: Annotated[float, Above(0), Below(1)] = 0.5
    growth_interval: Annotated[int, Above(0)] = 2000

    overflow: bool = progress(False)
    scale: float = progress(0.0)
    overflows: int = progress(0)
    finite_windows: int = progress(0)  # since the scale was changed

    _optimizers: tuple[Any, ...]
    _scaler: GradScaler

    def setup(self, optimizer: Any, device: Any) -> None:
        self._optimizers = optimizers_of(optimizer)
        self.scale = self.scale or self.init_scale
        self._scaler = torch.amp.GradScaler(
            device.type,
            init_scale=self.scale,
            growth_factor=self.growth_factor,
            backoff_factor=self.backoff_factor,
            growth_interval=self.growth_interval,
        )
        self._scaler.load_state_dict({**self._scaler.state_dict(), "_growth_tracker": self.finite_windows})
        self._scaler.scale(torch.zeros((), device=device))  # it creates its tensors at the first call
        self.scale = self._scaler.get_scale()  # in float32

    def __call__(self) -> None:
        if all(parameter.grad is None for parameter in parameters_of(self._optimizers)):
            self.overflow = False
            return
        try:
            for optimizer in self._optimizers:
                self._scaler.unscale_(optimizer)
        except ValueError as error:
            hint = 'leave the model in float32: with precision "16-mixed" torch\'s autocast computes in float16'
            raise UsageError(f"unscale: {error} The model is in float16", hint) from None
        self._scaler.update()
        state, before = self._scaler.state_dict(), self.scale
        self.scale, self.finite_windows = state["scale"], state["_growth_tracker"]
        self.overflow = self.scale < before
        self.overflows += self.overflow
        if not self.scale:
            raise UsageError(
                f"unscale: the loss scale has dropped to 0, after {self.overflows} overflows",
                "look for the first loss that is not finite; a smaller learning rate or clip.max_norm may help",
            )
