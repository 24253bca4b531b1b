"""A copy of a model that follows it: a target network, a momentum encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import copy_of, node
from graphtrain.kind.trigger import Trigger
from graphtrain.lazy import lazy_import
from graphtrain.names import plain_name, plainly_named

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(makes={"target": copy_of("model")}, family="update", varying="rate")
class CopyWeights:
    """Copy the weights of `model` to `target`, or move those of `target` towards them; buffers are always copied.

    If there is no resource `target`, it is created as a copy of `model`. A step function can take `target` as an
    argument.
    Source: Mnih et al., "Human-level control through deep reinforcement learning", 2015, with the rate 1; Lillicrap et
    al., "Continuous control with deep reinforcement learning", 2016, and He et al., "Momentum contrast for unsupervised
    visual representation learning", 2020, with a small one at every step.

    Arguments:
        every: when to do it. Default: after every step of the optimizer.
        rate: the fraction of the difference by which `target` moves, from 0 to 1. Default: 1, a copy.

    Raises:
        UsageError: the rate is below 0 or above 1.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").insert("copy_weights", after="step", every="2 steps", rate=0.5)
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("1 steps")
    rate: float = 1.0

    def __call__(self, model: Any, target: Any) -> None:
        if not 0 <= self.rate <= 1:
            raise UsageError(
                f"copy_weights.rate: expected a number from 0 to 1, got {self.rate}", "1 copies the weights"
            )
        move_towards(target, model, self.rate)


def move_towards(average: Any, model: Any, weight: float) -> None:
    """Move parameters of `average`, in their type, a part of the way towards those of `model`; buffers are copied."""
    for module in (average, model):
        if hasattr(type(module), "set_requires_gradient_sync"):  # a sharded one, which an evaluation may leave whole
            from graphtrain.ranks.sharded import reshard

            reshard(module)
    with torch.no_grad():
        if any(map(torch.nn.parameter.is_lazy, average.parameters())):  # copied before the first batch
            average.load_state_dict(model.state_dict())
        means, values = list(average.parameters()), list(model.parameters())
        if any(mean.dtype != value.dtype for mean, value in zip(means, values, strict=True)):  # one that was supplied
            values = [value.to(mean.dtype) for mean, value in zip(means, values, strict=True)]
        if means and all(mean.is_floating_point() for mean in means):
            torch._foreach_lerp_(means, values, weight)
        else:
            for mean, value in zip(means, values, strict=True):
                averages = mean.is_floating_point() or mean.is_complex()
                mean.lerp_(value, weight) if averages else mean.copy_(value)
        buffers = dict(plainly_named(average.named_buffers(remove_duplicate=False)))
        for name, value in model.named_buffers(remove_duplicate=False):
            if (plain := plain_name(name)) in buffers:
                buffers[plain].copy_(value)
            else:  # it was None when `average` was copied
                owner, _, last = name.rpartition(".")
                average.get_submodule(owner)._buffers[last] = value.clone()
