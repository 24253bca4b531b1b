"""One optimizer or several, as the slot `optimizer` of a node may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


def optimizers_of(optimizer: Any) -> tuple[Any, ...]:
    """The optimizers in a slot that holds one optimizer, or a list or tuple of several.

    >>> optimizers_of("one"), optimizers_of(["first", "second"])
    (('one',), ('first', 'second'))
    """
    return tuple(optimizer) if isinstance(optimizer, tuple | list) else (optimizer,)


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """The parameters that an optimizer, or each of several, currently updates; parameter groups may change.

    >>> import torch
    >>> linear = torch.nn.Linear(2, 3)
    >>> [tuple(parameter.shape) for parameter in parameters_of(torch.optim.SGD([linear.weight]))]
    [(3, 2)]
    """
    parameters: list[torch.Tensor] = []
    for each in optimizers_of(optimizer):
        for group in each.param_groups:
            parameters += group["params"]
    return parameters


def gradients_of(optimizer: Any) -> list[torch.Tensor]:
    """The gradients of the parameters of one or several optimizers; parameters without a gradient are left out."""
    return [gradient for parameter in parameters_of(optimizer) if (gradient := parameter.grad) is not None]


def norms_of(tensors: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of each tensor, on the device of the first; the norm of the result is the total norm.

    The norm of a sharded tensor is that of the whole tensor; tensors may be sparse.

    >>> import torch
    >>> norms_of([torch.tensor([3.0, 4.0]), torch.tensor([[-2.0]])], 2.0)
    tensor([5., 2.])
    """
    tensors = [tensor.coalesce().values() if tensor.is_sparse else tensor for tensor in tensors]
    if any(type(tensor).__name__ == "DTensor" for tensor in tensors):
        from graphtrain.ranks.sharded import whole_norms  # which few runs need

        return whole_norms(tensors, norm_type)
    with torch.no_grad():
        norms = torch._foreach_norm(tensors, norm_type)
        return torch.stack([norm.to(norms[0].device) for norm in norms])
