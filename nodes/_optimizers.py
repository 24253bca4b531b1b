"""One optimizer or several, as the slot `optimizer` of a node may hold."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


def optimizers_of(optimizer: Any) -> tuple[Any, ...]:
    """The optimizers in a slot: itself, or all of a list."""
    return tuple(optimizer) if isinstance(optimizer, tuple | list) else (optimizer,)


def one_of(optimizer: Any, kind: str) -> Any:
    """The optimizer in a slot, for a kind that takes one alone.

    Raises:
        UsageError: there are several.

    >>> one_of(("first", "second"), "closure_step")
    Traceback (most recent call last):
        ...
    graphtrain.errors.UsageError: `closure_step` steps one optimizer, and reads 2
      hint: give each a node of its own
    """
    optimizers = optimizers_of(optimizer)
    if len(optimizers) > 1:
        raise UsageError(f"`{kind}` steps one optimizer, and reads {len(optimizers)}", "give each a node of its own")
    return optimizers[0]


def computes_losses(optimizer: Any) -> bool:
    """True for an optimizer whose step computes the loss itself: it cannot do without a closure.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> computes_losses(torch.optim.LBFGS([weight])), computes_losses(torch.optim.SGD([weight]))
    (True, False)
    """
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return closure is not None and closure.default is closure.empty


def parameters_of(*optimizers: Any) -> list[torch.Tensor]:
    """The parameters that the optimizers update now, in their order; groups and what is in them may change at any time.

    To join the lists of the groups takes 0.13 us for four parameters and 0.3 for 200; going through the modules of a
    model, as ``model.parameters()`` does, 1 us a module.

    >>> linear = torch.nn.Linear(2, 3)
    >>> [tuple(parameter.shape) for parameter in parameters_of(torch.optim.SGD([linear.weight]))]
    [(3, 2)]
    """
    parameters: list[torch.Tensor] = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            parameters += group["params"]
    return parameters


def names_of(parameters: Iterable[torch.Tensor], model: Any, optimizers: Iterable[Any]) -> list[str]:
    """The names of parameters in a model; of those that it has not, their group and number in their optimizer.

    >>> linear, other = torch.nn.Linear(2, 3), torch.zeros(1, requires_grad=True)
    >>> names_of([linear.bias, other], linear, [torch.optim.SGD([*linear.parameters(), other])])
    ['bias', '0.2']
    """
    names = {
        id(parameter): f"{index}.{number}"
        for optimizer in optimizers
        for index, group in enumerate(optimizer.param_groups)
        for number, parameter in enumerate(group["params"])
    }
    if isinstance(model, torch.nn.Module):
        names |= {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for parameter in parameters]
