"""The number formats that a step function computes in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind.parameter import Precision
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.nodes._compiled import Compiled
else:
    torch = lazy_import("torch")


Around = Callable[[Any, Any, Any], Any]
"""Calls a step function with a model and a batch."""

_MIXED = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}


def around(precision: Precision, device: torch.device, compiled: Compiled | None = None) -> Around | None:
    """What calls a step function in a precision, perhaps compiled; None for a plain call, which costs nothing.

    >>> around("32-true", torch.device("cpu")) is None
    True
    >>> around("bf16-mixed", torch.device("cpu"))(lambda model, batch: (batch @ batch).dtype, None, torch.ones(1, 1))
    torch.bfloat16
    """
    if precision not in _MIXED:
        return compiled
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # on some devices torch warns, and computes in float32
            # One object serves every call: entering and leaving it costs 1.5 us, making it another 0.8 us.
            autocast = torch.autocast(device.type, getattr(torch, _MIXED[precision]))
    except (RuntimeError, UserWarning) as error:
        raise UsageError(
            f'precision "{precision}": there is none on the device `{device}` ({error})', 'use "32-true"'
        ) from None

    def under(function: Any, model: Any, batch: Any) -> Any:
        with autocast:
            return function(model, batch) if compiled is None else compiled(function, model, batch)

    return under


def scaled(loss: torch.Tensor, scale: float) -> torch.Tensor:
    """A loss multiplied as `GradScaler` does: in float32 where its own type has less."""
    return (loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss) * scale
