"""Make a resource again: a new model for each fold, a new optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphtrain.kind import node

if TYPE_CHECKING:
    from graphtrain.program.factories import Renewals


@node(family="update")
class Renew:
    """Make a resource again by its `Factory`, and then what is made of it: an optimizer, a scheduler.

    A model is made again with the optimizer that needs it, and so is a copy of it, such as that of `ema`. Whatever
    reads one of them has the new one from then on; gradients and an open accumulation window are gone with the model.
    Random numbers are those of the run, so a resume and a replay are exact.

    Arguments:
        resource: the name of what is made again. Default: there is none, it has to be named.

    Raises:
        UsageError: the resource is no `Factory`, or an optimizer that is none was made of it; when the run begins.

    >>> import torch
    >>> from graphtrain import Factory, Graph
    >>> def make_optimizer(model):
    ...     return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    >>> def make_scheduler(optimizer):
    ...     return torch.optim.lr_scheduler.LinearLR(optimizer)
    >>> optimizer, scheduler = Factory(make_optimizer), Factory(make_scheduler)
    >>> graph = Graph.load("fit").insert("renew", after="begin_epoch", resource="optimizer")
    >>> graph.check()
    []
    """

    resource: str

    _renewals: Renewals

    def setup(self, renewals: Renewals) -> None:
        self._renewals = renewals

    def __call__(self) -> None:
        self._renewals.renew(self.resource)
