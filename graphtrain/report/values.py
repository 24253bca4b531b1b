"""Metrics: a name, and a real number or a tensor of one element."""

from __future__ import annotations

import math
import numbers
from abc import ABC
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from graphtrain.errors import UsageError
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


# The columns of every row besides its metrics.
ROW_POSITION = ("step", "epoch")


@dataclass(frozen=True)
class Reduced(ABC):
    """A metric that a row does not average over samples; its class has the name of one of `REDUCTIONS`."""

    value: Any


@final
class Sum(Reduced):
    """A metric whose values are added up: ``{"loss": loss, "mistakes": Sum(mistakes)}``.

    A row has the sum since the last one; that of an epoch or a validation has the sum over it, of all ranks.

    Arguments:
        value: a number, or a tensor with one.

    >>> Sum(3)
    Sum(value=3)
    """


@final
class Max(Reduced):
    """A metric of which a row has the greatest value; NaN if one value is NaN. Otherwise like `Sum`.

    >>> Max(0.5)
    Max(value=0.5)
    """


@final
class Min(Reduced):
    """A metric of which a row has the least value; NaN if one value is NaN. Otherwise like `Sum`.

    >>> Min(0.5)
    Min(value=0.5)
    """


# The function that reduces two values to one.
REDUCTIONS: Mapping[str, Callable[[float, float], float]] = {
    "sum": lambda first, second: first + second,
    "max": lambda first, second: math.nan if first != first or second != second else max(first, second),
    "min": lambda first, second: math.nan if first != first or second != second else min(first, second),
}


def check_metric(name: Any, value: Any, source: str, remedy: str = "") -> None:
    """Raise a UsageError unless this is a metric; its message begins with `source`, and its hint with `remedy`."""
    if not isinstance(name, str):
        raise UsageError(f"{source} a metric whose name is {described(name)}: {name!r}", "names are strings")
    if name in ROW_POSITION:
        raise UsageError(f"{source} `{name}`, which every row of metrics has already", "choose another name")
    if not is_number(value.value if isinstance(value, Reduced) else value):
        raise UsageError(
            f"{source} `{name}`, {described(value)}; metrics are numbers or scalar tensors",
            f"{remedy}return its mean, leave it out, or send it to a slot by `writes` of the node",
        )


def not_finite_since(rows: Iterable[Mapping[str, float]]) -> str:
    """Which losses are not finite in the latest row that has them, and since when, in words; empty if all are.

    >>> not_finite_since([{"step": 150, "loss": 0.5}, {"step": 200, "loss": math.nan}, {"step": 250, "loss": math.inf}])
    '`loss` became non-finite between steps 150 and 200'
    """
    steps: dict[str, list[float]] = {}  # of the last row where it was finite, and of those after it
    for row in rows:
        for name in (name for name in row if name.rpartition("/")[2] == "loss"):
            before = [] if math.isfinite(row[name]) else steps.get(name, [0])
            steps[name] = [*before[:2], row.get("step", 0)][:2]
    return ", ".join([f"`{name}` {not_finite_words(*pair)}" for name, pair in steps.items() if len(pair) == 2])


def not_finite_words(before: float, step: float) -> str:
    """Since when a value is not finite, from the steps of the rows before and after."""
    is_exact = step <= before + 1
    return f"is not finite since step {step}" if is_exact else f"became non-finite between steps {before} and {step}"


def detached(value: Any) -> Any:
    """The current value without its autograd graph; a tensor that may share memory with a weight or buffer is copied.

    >>> buffer = torch.zeros(()); metric = detached(buffer); buffer += 1
    >>> metric.item()
    0.0
    """
    if not isinstance(value, torch.Tensor):
        return type(value)(detached(value.value)) if isinstance(value, Reduced) else value
    # A computed tensor has its own memory: a copy of it would cost 1 us for nothing.
    is_computed = value.grad_fn is not None and not value._is_view()
    return value.detach() if is_computed else value.detach().clone()


def as_numbers(values: Sequence[Any]) -> list[float]:
    """Every value as a Python number; tensors of one device, dtype and shape are transferred together."""
    alike: dict[Any, list[int]] = {}
    numbers = [*values]
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            alike.setdefault((value.device, value.dtype, value.shape), []).append(index)
    for indices in alike.values():
        transferred = torch.stack([values[index] for index in indices]).flatten().tolist()
        for index, number in zip(indices, transferred, strict=True):
            numbers[index] = number
    return [*map(float, numbers)]


def described(value: Any) -> str:
    """A value in words, by its type.

    >>> described(torch.zeros(2, 3)), described(None), described([0.5]), described(3)
    ('a tensor of shape (2, 3)', 'nothing', 'a list of 1', 'an int')
    """
    if isinstance(value, torch.Tensor):
        return f"a tensor of {'complex numbers, of ' if value.is_complex() else ''}shape {tuple(value.shape)}"
    items = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}{items}"


def is_number(value: Any) -> bool:
    """True for a real number, or a tensor with one."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, numbers.Real)
