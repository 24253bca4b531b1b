"""A step of the inner loop in meta-learning."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain import Above, StepFunction, UsageError, described, lazy_import, loss_and_metrics, node

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Shift = dict[str, Tensor] | None
    Weights = Mapping[str, Tensor]
else:
    torch = lazy_import("torch")


Count = Annotated[int, Above(0)]
Rate = Annotated[float, Above(0)]


@node(writes="shift", family="compute")
def adapt(
    model: Any, batch: Any, training_step: StepFunction, shift: Shift = None, *, steps: Count = 1, rate: Rate = 0.01,
    second_order: bool = True,
) -> Shift:  # fmt: skip
    """Adapt the weights of a model to a task by one step of gradient descent; the model itself is not changed.

    The gradients are those of ``training_step(model, batch["support"])`` at the weights adapted so far.
    Source: Finn et al., "Model-agnostic meta-learning for fast adaptation of deep networks", 2017. The graph `maml`
    uses this kind together with `train_adapted`.

    Reads:
        batch: a task: a mapping with the batches `support`, to adapt to, and `query`, to evaluate on.
        shift: the sum of the previous steps for each parameter that requires gradients. Default: nothing.

    Arguments:
        steps: number of steps per task. Default: 1.
        rate: learning rate of these steps. Default: 0.01.
        second_order: True backpropagates the outer loss through the inner gradients. These keep their autograd graph,
            so a checkpoint can be saved only before the first step of a task or after the last. False is first-order
            MAML: inner gradients are constants, and a run can be resumed between any steps. Default: True.

    Writes:
        shift: the sum of the steps, by parameter name.

    Raises:
        UsageError: the batch is not such a mapping.

    >>> import torch
    >>> from graphtrain import Graph
    >>> train_data = [{"support": torch.rand(4, 2), "query": torch.rand(4, 2)} for _ in range(3)]
    >>> graph = Graph.load("maml").set("inner/adapt", rate=1e-5, second_order=False)
    >>> graph.check()
    []
    """
    if not isinstance(batch, Mapping) or not {"support", "query"} <= batch.keys():
        raise UsageError(f"`adapt`: the batch is {described(batch)}", 'a task is {"support": ..., "query": ...}')
    shift = shift or {name: torch.zeros_like(each) for name, each in model.named_parameters() if each.requires_grad}
    weights = shifted(model, shift)
    loss, _ = loss_and_metrics(call_with(weights, training_step, model, batch["support"]), "training_step")
    gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=second_order, materialize_grads=True)
    return {name: shift[name] - rate * gradient for name, gradient in zip(weights, gradients, strict=True)}


def shifted(model: torch.nn.Module, shift: Weights) -> dict[str, torch.Tensor]:
    """The parameters of a model that have a shift, with the shift added; gradients reach both."""
    return {name: weight + shift[name] for name, weight in model.named_parameters() if name in shift}


def call_with(weights: Weights, function: Callable[[Any, Any], Any], model: torch.nn.Module, batch: Any) -> Any:
    """Call a step function with a model that has other weights during the call."""
    step = torch.nn.Module()  # what torch swaps the weights of: the step function may use the model in any way
    step.add_module("model", model)
    step.forward = functools.partial(function, model)
    return torch.func.functional_call(step, {f"model.{name}": each for name, each in weights.items()}, (batch,))
