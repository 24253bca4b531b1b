"""A copy of a model that follows it: an average of its weights, a target network, a momentum encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Below
from graphtrain.kind.trigger import Trigger
from graphtrain.lazy import lazy_import
from graphtrain.names import plain_name, plainly_named

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(copies={"average": "model"}, family="update", varying="decay")
class Ema:
    """Update the weights of `average` as an exponential moving average of those of `model`; buffers are copied.

    If there is no resource `average`, it is created as a copy of `model`. A validation that reads it as its `model`
    evaluates the average; a step function can take it as an argument. With ``reads = { average = "target" }`` it is the
    resource `target`: with the decay 0, which copies the weights, the target network of DQN, with a decay near 1 the
    momentum encoder of MoCo.
    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; the warm-up is that of
    TensorFlow's `ExponentialMovingAverage` with `num_updates`.

    Arguments:
        every: when to update. Default: after every step of the optimizer.
        decay: weight of the old average in each update, from 0 to below 1. Default: 0.999.
        warmup: True increases the decay with the number n of updates so far, as ``min(decay, (1 + n) / (10 + n))``, so
            that the initial, untrained weights soon lose their influence. Default: False. The overlay `ema` sets True.

    Guard fields:
        updates: number of updates of the average.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("ema").set("ema", decay=0.99)
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("1 steps")
    decay: Annotated[float, Below(1)] = 0.999
    warmup: bool = False

    updates: int = progress(0, adds=1)

    def __call__(self, model: Any, average: Any) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        self.updates += 1
        move_towards(average, model, 1 - decay)


def move_towards(average: Any, model: Any, weight: float) -> None:
    """Move parameters of `average`, in their type, a part of the way towards those of `model`; buffers are copied."""
    for module in (average, model):
        if hasattr(type(module), "set_requires_gradient_sync"):  # sharded, but an evaluation may leave it unsharded
            from graphtrain.ranks.sharded import reshard

            reshard(module)
    with torch.no_grad():
        if any(map(torch.nn.parameter.is_lazy, average.parameters())):  # it was copied before the first batch
            average.load_state_dict(model.state_dict())
        means, values = list(average.parameters()), list(model.parameters())
        values = [value.to(mean.dtype) for mean, value in zip(means, values, strict=True)]  # types may differ
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
