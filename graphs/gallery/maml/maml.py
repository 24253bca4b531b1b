"""Meta-learning of sine waves: find initial weights that fit an unknown wave in a few steps on ten points.

    graphtrain run graphs/gallery/maml/maml.py inner/adapt.steps=3 accumulate.every=5 finish.after='1 epochs'

A task is a sine wave with any phase and an amplitude between 0.1 and 5; it has ten support points to adapt to and ten
query points to evaluate on. `val/loss` is the mean squared error on the query points of 300 other waves, after three
steps on the support points.
"""

import functools
from typing import Annotated, Any

from graphtrain import Above, StepFunction, lazy_import, loss_and_metrics, node

torch = lazy_import("torch")
nn = lazy_import("torch.nn")

graph = "maml"


@node(writes="shift", family="compute")
def adapt(
    model: Any, batch: Any, training_step: StepFunction, shift: Any = None, *, steps: Annotated[int, Above(0)] = 1,
    rate: Annotated[float, Above(0)] = 0.01, second_order: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Adapt the weights of a model to a task by one step of gradient descent; the model itself is not changed.

    The gradients are those of ``training_step(model, batch["support"])`` at the weights adapted so far.
    Source: Finn et al., "Model-agnostic meta-learning for fast adaptation of deep networks", 2017.

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

    >>> import torch
    >>> from graphtrain import Graph
    >>> train_data = [{"support": torch.rand(4, 2), "query": torch.rand(4, 2)} for _ in range(3)]
    >>> graph = Graph.load("maml").set("inner/adapt", rate=1e-5, second_order=False)
    >>> graph.check()
    []
    """
    shift = shift or {name: torch.zeros_like(each) for name, each in model.named_parameters() if each.requires_grad}
    weights = _shifted(model, shift)
    loss, _ = loss_and_metrics(_call_with(weights, training_step, model, batch["support"]), "training_step")
    gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=second_order, materialize_grads=True)
    return {name: shift[name] - rate * gradient for name, gradient in zip(weights, gradients, strict=True)}


def _shifted(model: Any, shift: Any) -> dict[str, Any]:
    return {name: weight + shift[name] for name, weight in model.named_parameters() if name in shift}


def _call_with(weights: dict[str, Any], function: Any, model: Any, batch: Any) -> Any:
    """Call a step function with a model that has other weights during the call."""
    step = nn.Module()  # torch swaps its weights, so that the step function may use the model in any way
    step.add_module("model", model)
    step.forward = functools.partial(function, model)
    return torch.func.functional_call(step, {f"model.{name}": each for name, each in weights.items()}, (batch,))


@node(writes=("adapted_step", "query"), transient="adapted_step", family="compute")
def use_adapted(model: Any, batch: Any, training_step: StepFunction, shift: Any) -> tuple[Any, Any]:
    """Write a step function for the weights adapted by the node `adapt`, and the batch `query` of the task.

    The gradients are those of the weights before adaptation: first-order, or through the steps of `adapt`.

    Reads:
        shift: what `adapt` adds to the parameters.

    Writes:
        adapted_step: read by `train_batch` as its `training_step`.
        query: read by `train_batch` as its `batch`.

    >>> import torch
    >>> from graphtrain import Graph
    >>> train_data = [{"support": torch.rand(4, 2), "query": torch.rand(4, 2)} for _ in range(3)]
    >>> graph = Graph.load("maml").set("inner/adapt", rate=1e-5, second_order=False)
    >>> graph.check()
    []
    """
    return functools.partial(_call_with, _shifted(model, shift), training_step), batch["query"]


def waves(count: int, seed: int) -> list[dict[str, Any]]:
    """Sine waves, each with ten support points and ten query points."""
    random = torch.Generator().manual_seed(seed)
    amplitudes = 0.1 + 4.9 * torch.rand(count, 1, 1, 1, generator=random)
    phases = torch.pi * torch.rand(count, 1, 1, 1, generator=random)
    inputs = 10 * torch.rand(count, 2, 10, 1, generator=random) - 5
    points = torch.stack([inputs, amplitudes * torch.sin(inputs - phases)], 2)
    return [{"support": support, "query": query} for support, query in points]


def training_step(model: Any, points: Any) -> Any:
    """The error on a set of points, for the inner and the outer loop."""
    return nn.functional.mse_loss(model(points[0]), points[1])


def validation_step(model: Any, task: Any) -> Any:
    """The error after three steps of adaptation."""
    shift = None
    with torch.enable_grad():
        for _ in range(3):
            shift = adapt(model, task, training_step, shift, second_order=False)
    return _call_with(_shifted(model, shift), training_step, model, task["query"])


def setup() -> dict[str, Any]:
    """The resources of the run."""
    model = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=2e-3),
        "train_data": waves(5_000, seed=0),
        "val_data": waves(300, seed=1),
        "training_step": training_step,
        "validation_step": validation_step,
    }
