"""Starting again with an untrained model, such as for each fold."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import node
from graphtrain.lazy import lazy_import
from graphtrain.names import plainly_named
from graphtrain.nodes._optimizers import optimizers_of

if TYPE_CHECKING:
    import torch

    from graphtrain.program.agreement import Agreement
else:
    torch = lazy_import("torch")


@node(effects="zero_grad", family="update")
class Renew:
    """Give `model` new initial weights, and clear the state of `optimizer`; the objects stay the same.

    Each submodule with a method `reset_parameters`, as torch's layers have, is reset by it, with the random numbers of
    the run; the parameters and buffers of all others get the values that they had when the run began. Pretrained
    weights of a layer with this method are lost. Gradients are cleared; copies of the model, such as that of `ema`,
    keep their weights.

    Reads:
        model: the module.
        optimizer: one, or a list of several. Its learning rates and other settings stay, unless there is a scheduler.
        scheduler: one, or a list of several. It starts again, with the settings of the optimizer when the run began.
            Default: none.

    Raises:
        UsageError: the model is sharded over ranks.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("kfold").set("begin_fold", folds=3)
    >>> graph.check()
    []
    """

    _optimizers: tuple[Any, ...]
    _schedulers: tuple[Any, ...]
    _ranks: Agreement | None

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}  # initial values that `reset_parameters` cannot restore

    def state_dict(self) -> dict[str, Any]:
        """The initial weights of modules without `reset_parameters`, and the initial optimizer and scheduler."""
        return self._first

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._first = state

    def setup(self, model: Any, optimizer: Any, scheduler: Any = None, ranks: Agreement | None = None) -> None:
        if hasattr(model, "set_requires_gradient_sync"):
            raise UsageError(
                "renew: `model` is sharded over ranks, and `reset_parameters` needs whole parameters",
                "train each model in a separate run, or replicate it on every rank",
            )
        self._optimizers, self._ranks = optimizers_of(optimizer), ranks
        self._schedulers = optimizers_of(scheduler) if scheduler is not None else ()
        if not self._first:
            self._first = copy.deepcopy(
                {
                    "model": {
                        name: [tensor.detach() for tensor in _tensors_of(module)]
                        for name, module in plainly_named(model.named_modules())
                        if not hasattr(module, "reset_parameters")
                    },
                    "optimizers": [each.state_dict() for each in self._optimizers],
                    "schedulers": [each.state_dict() for each in self._schedulers],
                }
            )

    def __call__(self, model: Any) -> None:
        for name, module in reversed(plainly_named(model.named_modules())):  # a model may reset its submodules itself
            if name in self._first["model"]:
                with torch.no_grad():
                    for tensor, first in zip(_tensors_of(module), self._first["model"][name], strict=True):
                        tensor.copy_(first)
            else:
                module.reset_parameters()
        if self._ranks is not None:  # each has drawn its own random numbers
            self._ranks.exchange((), {**dict(model.named_parameters()), **dict(model.named_buffers())})
        for optimizer, first in zip(self._optimizers, self._first["optimizers"], strict=True):
            optimizer.zero_grad()
            settings = first if self._schedulers else optimizer.state_dict()
            optimizer.load_state_dict(copy.deepcopy({**first, "param_groups": settings["param_groups"]}))
        for scheduler, first in zip(self._schedulers, self._first["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(first))


def _tensors_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters and buffers of a module itself."""
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
