"""Compares saved weights with a module, name by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_MOST_PROBLEMS = 10


def misfits(module: torch.nn.Module, saved: Mapping[str, Any]) -> str:
    """The tensors by which saved weights do not fit a module, a line each; empty if they fit.

    Arguments:
        saved: by the names of its `state_dict`. Of tied parameters it may have one name only.

    >>> print(misfits(torch.nn.Linear(2, 1), {"weight": torch.zeros(1, 3)}))
        missing in the file: bias
        weight: float32 (1, 3) in the file, float32 (1, 2) in the module
    """
    state_dict = module.state_dict()
    # An extra state is not a weight, and is in no such file.
    tensors = {key: value for key, value in state_dict.items() if isinstance(value, torch.Tensor)}
    is_lazy = torch.nn.parameter.is_lazy
    addresses = {key: tensor.data_ptr() for key, tensor in tensors.items() if not is_lazy(tensor) and tensor.numel()}
    loaded = {addresses[key] for key in saved if key in addresses}
    problems = [
        *(f"missing in the file: {key}" for key in tensors if key not in saved and addresses.get(key) not in loaded),
        *(f"unknown to the module: {key}" for key in saved if key not in state_dict),
        *(
            f"{key}: {dtype_and_shape(tensor)} in the file, {dtype_and_shape(tensors[key])} in the module"
            for key, tensor in saved.items()
            if key in tensors and not is_lazy(tensors[key]) and not _matches(tensor, tensors[key])
        ),
    ]
    more = [f"... and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
    return "\n".join(f"    {line}" for line in [*problems[:_MOST_PROBLEMS], *more])


def _matches(saved: Any, expected: torch.Tensor) -> bool:
    """True for the same shape, and never for integers, such as quantised weights, in place of floats."""
    if not isinstance(saved, torch.Tensor):
        return False
    return saved.shape == expected.shape and saved.is_floating_point() == expected.is_floating_point()


def dtype_and_shape(tensor: Any) -> str:
    """``"float32 (2, 3)"``; for other values, the type."""
    if not isinstance(tensor, torch.Tensor):
        return type(tensor).__name__
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
