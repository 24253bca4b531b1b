"""One step of an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphtrain.kind import node, progress
from graphtrain.nodes.fused import fused_step, unfuse
from graphtrain.nodes.optimizers import call_each, optimizers_of


@node(effects="step")
class Step:
    """Let `optimizer` update its parameters from their gradients.

    Arguments:
        fused: True uses the fused implementation of the optimizer's class, one kernel for all of its work, for every
            group; the last bits of the weights may differ. The groups themselves stay as the optimizer was made: what
            is fused is the step, so it may be changed at any resume. Default: False, as the optimizer was made.

    Guard fields:
        steps: steps taken since the start.
    """

    fused: bool = False

    steps: int = progress(0)

    _step: Callable[[], Any]

    def setup(self, optimizer: Any) -> None:
        one_step = fused_step if self.fused else plain_step
        self._step = call_each([one_step(one) for one in optimizers_of(optimizer)])

    def __call__(self) -> None:
        self._step()
        self.steps += 1
