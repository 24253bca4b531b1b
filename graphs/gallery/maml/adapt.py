"""A step of the inner loop of meta-learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain import Above, StepFunction, UsageError, described, lazy_import, loss_and_metrics, node
from graphtrain.graphs.gallery.maml._adapted import call_with, shifted

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Shift = dict[str, Tensor] | None
else:
    torch = lazy_import("torch")


Count = Annotated[int, Above(0)]
Rate = Annotated[float, Above(0)]


@node(writes="shift", family="compute")
def adapt(
    model: Any, batch: Any, training_step: StepFunction, shift: Shift = None, *, steps: Count = 1, rate: Rate = 0.01,
    second_order: bool = True,
) -> Shift:  # fmt: skip
    """Adapt the weights of a model to a task by a step of gradient descent; the model itself stays as it is.

    The gradients are those of ``training_step(model, batch["support"])``, at the weights with the shift so far.
    Source: Finn et al., "Model-agnostic meta-learning for fast adaptation of deep networks", 2017. The graph `maml` has
    it, with `train_adapted`.

    Reads:
        batch: a task: a mapping with the batches `support`, to adapt to, and `query`, to be judged by.
        shift: what the steps before have added to each parameter that needs gradients. Default: nothing.

    Arguments:
        steps: how many steps the graph takes for a task. Default: 1.
        rate: their learning rate. Default: 0.01.
        second_order: True lets the gradients of the outer loop go through those of the inner one. They keep their
            graph of operations, so a checkpoint is made before the first step of a task or after the last. False, the
            first order, takes inner gradients as constants, and can be resumed between any steps. Default: True.

    Writes:
        shift: what the steps have added, by the names of parameters.

    Raises:
        UsageError: the batch is no such mapping.

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
