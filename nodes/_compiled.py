"""A step function under `torch.compile`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, final

import torch

from graphtrain.data.batch import tensors_of
from graphtrain.program.resources import StepInputs, StepOutputs


@final
class Compiled:
    """Calls step functions compiled, their model as it is; each is compiled when it is first called.

    Every shape of a batch is compiled by itself, and every number in it (`dynamic=False`). Left alone, torch takes a
    size that has changed for a variable: the last bits of a batch then depend on the batches before it. A function that
    asks for a number that changes, such as `step`, would be compiled again for every one: of such a function only the
    sizes of tensors are fixed.
    """

    def __init__(self) -> None:
        self._function: Any = None
        self._compiled: Callable[[Any, Any], Any]

    def __call__(self, function: Any, model: Any, batch: Any) -> Any:
        if isinstance(function, StepOutputs):  # slots are written outside of what is compiled
            return function.take(self(function.step, model, batch))
        asks = isinstance(function, StepInputs)
        if function is not self._function:
            options: dict[str, Any] = {"dynamic": None if asks else False}
            if "isolate_recompiles" in inspect.signature(torch.compile).parameters:  # since 2.13
                options["isolate_recompiles"] = True  # the shapes of one run count, not those of all in a process
            self._function, self._compiled = function, torch.compile(function, **options)
        if asks:
            for tensor in tensors_of(batch):
                torch._dynamo.mark_static(tensor)
        return self._compiled(model, batch)
