"""The first calls of a step function: does it do itself what nodes of the graph do?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import optimizers_of
from graphtrain.nodes._precision import Around

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")

# The second call of a window finds gradients, which `optimizer.step` and `optimizer.zero_grad` would use.
_CALLS = 2


def looking_at_first_calls(around: Around | None, optimizer: Any, seen: Callable[[], None]) -> Around:
    """What calls the step function the first times, and raises if it changes gradients or steps the optimizer.

    Arguments:
        around: what calls it otherwise. Default: a plain call.
        seen: called with the last of these calls, so that later ones cost nothing.

    Raises:
        UsageError: by the call.
    """
    calls = 0

    def call(training_step: Any, model: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == _CALLS:
            seen()
        steps: list[int] = []
        optimizers = [each for each in optimizers_of(optimizer) if isinstance(each, torch.optim.Optimizer)]
        hooks = [each.register_step_pre_hook(lambda *_: steps.append(1)) for each in optimizers]
        before = _gradients(optimizers)
        try:
            result = training_step(model, batch) if around is None else around(training_step, model, batch)
        finally:
            for hook in hooks:
                hook.remove()
        if steps:
            raise UsageError("`training_step` calls optimizer.step(), as the node `step` does", _RETURN)
        pairs = zip(before, _gradients(optimizers), strict=False)  # it may add a group
        if any(old is not new or count != other for (old, count), (new, other) in pairs):
            raise UsageError(
                "`training_step` changes gradients, as loss.backward() and optimizer.zero_grad() do; `train_batch` "
                "runs backward itself, and the node `zero_grad` clears them",
                _RETURN,
            )
        return result

    return call


_RETURN = "leave it out: return the loss alone"


def _gradients(optimizers: list[torch.optim.Optimizer]) -> list[tuple[torch.Tensor | None, int]]:
    """The gradient of each parameter, with the number of its changes in place."""
    parameters = [each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]]
    return [(each.grad, -1 if each.grad is None else each.grad._version) for each in parameters]
