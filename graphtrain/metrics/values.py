"""What a metric is: a name that is text, and a real number or a tensor of one."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import torch

from graphtrain.errors import UsageError

# What a row says of itself.
OF_THE_ROW = ("step", "epoch")


def check_metric(name: Any, value: Any, source: str) -> None:
    """Raise where this can be no metric.

    Arguments:
        source: who gave it, for the message.

    Raises:
        UsageError: the name is no text, or the value neither a real number nor a tensor of one.
    """
    if not isinstance(name, str):
        raise UsageError(f"{source} a metric whose name is {described(name)}: {name!r}", "names are text")
    if not _is_one_number(value):
        raise UsageError(
            f"{source} `{name}`, {described(value)}; metrics are numbers or scalar tensors",
            "give a mean of it, or leave it out",
        )


def check_names(names: Iterable[str], source: str) -> None:
    """Raise where a metric is called as something that each row says of itself.

    Raises:
        UsageError: one is called `step` or `epoch`.
    """
    for name in names:
        if name in OF_THE_ROW:
            raise UsageError(f"{source} `{name}`, which every row of metrics says of itself", "call it otherwise")


def held(value: Any) -> Any:
    """The value as it is now, without its autograd graph: what shares memory with a weight or a buffer is copied.

    >>> seen = torch.zeros(()); kept = held(seen); seen += 1
    >>> kept.item()
    0.0
    """
    if not isinstance(value, torch.Tensor):
        return value
    # What was computed has memory of its own: a copy would cost 1 us.
    is_computed = value.grad_fn is not None and not value._is_view()
    return value.detach() if is_computed else value.detach().clone()


def as_number(value: Any) -> int | float:
    """A metric as a plain number.

    >>> as_number(torch.tensor(2)), as_number(True), as_number(0.5)
    (2, 1, 0.5)
    """
    if isinstance(value, torch.Tensor):
        value = value.item()
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def described(value: Any) -> str:
    """A value in words, by its type.

    >>> described(torch.zeros(2, 3)), described(None), described([])
    ('a tensor of shape (2, 3)', 'nothing', 'a list')
    """
    if isinstance(value, torch.Tensor):
        return f"a tensor of {'complex numbers, of ' if value.is_complex() else ''}shape {tuple(value.shape)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _is_one_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, numbers.Real)
