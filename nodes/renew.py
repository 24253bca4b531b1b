"""Recreating a resource, such as a new model for each fold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphtrain.kind import node

if TYPE_CHECKING:
    from graphtrain.program.factories import Renewals


@node(family="update")
class Renew:
    """Recreate a resource with its `Factory`, and then everything made from it, such as an optimizer or a scheduler.

    When a model is recreated, so are its optimizer and its copies, such as that of `ema`. All nodes then read the new
    objects; gradients and an open accumulation window are discarded with the old model. The random numbers are those of
    the run, so resuming and replaying are exact.

    Arguments:
        resource: name of the resource to recreate. Default: none; it must be set.

    Raises:
        UsageError: when the run begins, the resource is not a `Factory`, or its optimizer was not made by one.

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
