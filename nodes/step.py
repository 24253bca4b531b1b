"""One step of an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphtrain.kind import node, progress
from graphtrain.nodes.optimizers import call_each, optimizers_of


@node(effects="step")
class Step:
    """Let `optimizer` update its parameters from their gradients.

    Guard fields:
        steps: steps taken since the start.
    """

    steps: int = progress(0)

    _step: Callable[[], Any]

    def setup(self, optimizer: Any) -> None:
        self._step = call_each([one.step for one in optimizers_of(optimizer)])

    def __call__(self) -> None:
        self._step()
        self.steps += 1
