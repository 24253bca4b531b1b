"""The optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import node, progress
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import computes_losses, gradients_of, optimizers_of

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(effects="step")
class Step:
    """Take a step with `optimizer`, which updates its parameters from their gradients.

    Arguments:
        fused: True uses the fused implementation of the optimizer, one kernel for a parameter group; the weights may
            differ in their last bits. Parameter groups have `fused` set only during the step, so this setting may be
            changed at any resume. Default: False, as the optimizer was created.

    Guard fields:
        steps: steps taken since the start.

    Raises:
        UsageError: `fused` is set, and the optimizer has no fused implementation; or its step needs a closure, like
            that of LBFGS: use the kind `closure_step` instead.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("step", fused=True)
    >>> graph.check()
    []
    """

    fused: bool = False

    steps: int = progress(0, adds=1)

    _optimizers: tuple[Any, ...]
    _notify: Callable[[str], None] | None

    def setup(self, optimizer: Any, notify: Callable[[str], None] | None = None) -> None:
        self._optimizers, self._notify = optimizers_of(optimizer), notify
        for optimizer in self._optimizers:
            if computes_losses(optimizer):
                raise UsageError(
                    f"`step` has gradients, and `{type(optimizer).__name__}` computes the loss itself, several times",
                    'train with the graph `lbfgs`: --graph lbfgs, in Python Graph.load("lbfgs"), or with a node of the '
                    "kind `closure_step`",
                )
            if self.fused:
                _check_fused(optimizer)
        for optimizer in self._optimizers:
            _place_steps(optimizer, self.fused)

    def __call__(self) -> None:
        # It cannot be known when the optimizer is supplied whether anything trains its parameters.
        if not self.steps and self._notify is not None and not gradients_of(self._optimizers):
            self._notify(
                "the first step of the optimizer finds no gradient on any of its parameters, and changes nothing; "
                "was it made of the model that is trained?"
            )
        for optimizer in self._optimizers:
            if self.fused:
                _step_fused(optimizer)
            else:
                optimizer.step()
        self.steps += 1


def _check_fused(optimizer: Any) -> None:
    """Raise where torch has no fused implementation, or what the optimizer was made with excludes it."""
    name = type(optimizer).__name__
    if "fused" not in getattr(optimizer, "defaults", {}):
        raise UsageError(
            f"step.fused: `{name}` has no fused implementation",
            "leave it at false, or use an optimizer that has one, such as SGD, Adam, AdamW or Adagrad",
        )
    for other in ("foreach", "differentiable"):
        if any(group.get(other) for group in optimizer.param_groups):
            raise UsageError(
                f"step.fused: `{name}` was made with {other}=True, which excludes a fused step",
                f"leave `{other}` out where the optimizer is made, or step.fused at false",
            )


def _step_fused(optimizer: Any) -> None:
    as_made = [(group, group["fused"]) for group in optimizer.param_groups]
    for group, _ in as_made:
        group["fused"] = True
    try:
        optimizer.step()
    finally:
        for group, value in as_made:
            group["fused"] = value


def _place_steps(optimizer: Any, fused: bool) -> None:
    """Put the counts of steps in an optimizer's state where its implementation expects them.

    A fused one has them on the device of the parameters, in float32; another on the host, unless it is `capturable`:
    elsewhere each step would wait for the device. Loading a state leaves them where the groups in it say.
    """
    if "fused" not in getattr(optimizer, "defaults", {}):
        return
    for group in optimizer.param_groups:
        as_made = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            count = state.get("step")
            if not isinstance(count, torch.Tensor):
                continue
            if fused:
                state["step"] = count.to(parameter.device, torch.float32)
            elif not as_made:
                state["step"] = count.cpu()
