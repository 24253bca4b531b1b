"""The optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import node, progress
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import gradients_of, optimizers_of

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(effects="step")
class Step:
    """Take a step with `optimizer`, which updates its parameters from their gradients.

    Guard fields:
        steps: steps taken since the start.

    Raises:
        UsageError: it is an LBFGS, whose steps need a closure: use the kind `closure_step` instead.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").clock("updates", "step.steps").set("log", every="10 updates")
    >>> graph.check()
    []
    """

    steps: int = progress(0, adds=1)

    _optimizers: tuple[Any, ...]
    _notify: Callable[[str], None] | None

    def setup(self, optimizer: Any, notify: Callable[[str], None] | None = None) -> None:
        self._optimizers, self._notify = optimizers_of(optimizer), notify
        for optimizer in self._optimizers:
            if isinstance(optimizer, torch.optim.LBFGS):
                raise UsageError(
                    "`step` cannot step an LBFGS, which needs a closure to compute the loss several times",
                    'train with the graph `lbfgs`: --graph lbfgs, in Python Graph.load("lbfgs")',
                )

    def __call__(self) -> None:
        # Whether anything trains the parameters of the optimizer is known only now.
        if not self.steps and self._notify is not None and not gradients_of(self._optimizers):
            self._notify(
                "the first step of the optimizer changes nothing: none of its parameters has a gradient; "
                "was it created with the parameters of the model that is trained?"
            )
        for optimizer in self._optimizers:
            optimizer.step()
        self.steps += 1
