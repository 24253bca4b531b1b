"""Norms of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


def norms_of(tensors: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of each tensor, on the device of the first; the norm of these is the norm of all.

    >>> norms_of([torch.tensor([3.0, 4.0]), torch.tensor([[-2.0]])], 2.0)
    tensor([5., 2.])
    """
    with torch.no_grad():
        norms = torch._foreach_norm(tensors, norm_type)
        return torch.stack([norm.to(norms[0].device) for norm in norms])
