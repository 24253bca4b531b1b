"""Dividing gradients by a count of the window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import gradients_of, optimizers_of

if TYPE_CHECKING:
    import torch

    from graphtrain.program.agreement import Agreement
else:
    torch = lazy_import("torch")


@node(effects="divide", synchronises=True)
class Divide:
    """Divide the gradients of `optimizer` by a number, such as the number of tokens in the window.

    Nothing is done for 1 and for 0: the loss of a window without tokens is an empty sum, and its gradients are 0.
    Source of weighting all tokens equally: transformers issue 34191, 2024.

    Reads:
        by: a number or a one-element tensor, which stays on its device, such as ``train_batch.window_count``.

    Arguments:
        over_ranks: True first sums `by` over all ranks, each of which has its own count. Default: False, `by` is the
            same on all ranks.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("accumulate", every=2)
    >>> graph = graph.insert("divide", after="exchange", reads={"by": "accumulate.count / max(1, accumulate.window)"})
    >>> graph.check()
    []
    """

    over_ranks: bool = False

    _optimizers: tuple[Any, ...]
    _ranks: Agreement | None

    def setup(self, optimizer: Any, ranks: Agreement | None = None) -> None:
        self._optimizers, self._ranks = optimizers_of(optimizer), ranks

    def __call__(self, by: Any) -> None:
        if self.over_ranks and self._ranks is not None:
            by = sum(self._ranks.gather(float(by)))
        if isinstance(by, torch.Tensor):
            by = by.where(by != 0, 1)
        elif by in (0, 1):
            return
        gradients = gradients_of(self._optimizers)
        devices = {gradient.device for gradient in gradients}
        is_plain = all(type(gradient) is torch.Tensor and not gradient.is_sparse for gradient in gradients)
        with torch.no_grad():
            if len(devices) == 1 and is_plain:
                torch._foreach_div_(gradients, by.to(devices.pop()) if isinstance(by, torch.Tensor) else by)
                return
            for gradient in gradients:
                gradient.div_(by.to(gradient.device) if isinstance(by, torch.Tensor) else by)
