"""How a step function is called: its precision, and `torch.compile`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from graphtrain.errors import UsageError
from graphtrain.kind.parameter import Precision
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.data import batch as batches
    from graphtrain.program import resources
else:
    torch = lazy_import("torch")
    batches = lazy_import("graphtrain.data.batch")
    resources = lazy_import("graphtrain.program.resources")

StepCaller = Callable[[Any, Any, Any], Any]
"""Calls a step function with a model and a batch."""

_MIXED = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}


def step_caller(precision: Precision, device: torch.device, *, compile: bool = False) -> StepCaller | None:
    """A function that calls step functions in a precision, perhaps compiled; None if a plain call does the same.

    >>> step_caller("32-true", torch.device("cpu")) is None
    True
    >>> call = step_caller("bf16-mixed", torch.device("cpu"))
    >>> call(lambda model, batch: (batch @ batch).dtype, None, torch.ones(1, 1))
    torch.bfloat16
    """
    compiled = Compiled() if compile else None
    if precision not in _MIXED:
        return compiled
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # on some devices torch warns, and computes in float32
            # One object serves every call: entering and leaving it costs 1.5 us, making it another 0.8 us.
            autocast = torch.autocast(device.type, getattr(torch, _MIXED[precision]))
    except (RuntimeError, UserWarning) as error:
        message = f'precision "{precision}": the device `{device}` does not support it ({error})'
        raise UsageError(message, 'use "32-true"') from None

    def under(function: Any, model: Any, batch: Any) -> Any:
        with autocast:
            return function(model, batch) if compiled is None else compiled(function, model, batch)

    return under


def scaled(loss: torch.Tensor, scale: float) -> torch.Tensor:
    """A loss multiplied as `GradScaler` does: in float32 where its own type has less."""
    return (loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss) * scale


@final
class Compiled:
    """Calls step functions through `torch.compile`, at the first call of each; the model itself is not compiled.

    Every shape of a batch, and every number in it, is compiled separately (`dynamic=False`). By default, torch treats a
    size that has changed as a variable: the last bits of a batch then depend on earlier batches. A function with an
    argument that changes, such as `step`, would be compiled for each value; for it, only sizes of tensors are fixed.
    """

    def __init__(self) -> None:
        self._function: Any = None
        self._compiled: Callable[[Any, Any], Any]

    def __call__(self, function: Any, model: Any, batch: Any) -> Any:
        if isinstance(function, resources.StepOutputs):  # slots are written outside of what is compiled
            return function.take(self(function.step, model, batch))
        asks = isinstance(function, resources.StepInputs)
        if function is not self._function:
            options: dict[str, Any] = {"dynamic": None if asks else False}
            if "isolate_recompiles" in inspect.signature(torch.compile).parameters:  # since 2.13
                options["isolate_recompiles"] = True  # the shapes of one run count, not those of all in a process
            self._function, self._compiled = function, torch.compile(function, **options)
        if asks:
            for tensor in batches.tensors_of(batch):
                torch._dynamo.mark_static(tensor)
        return self._compiled(model, batch)
