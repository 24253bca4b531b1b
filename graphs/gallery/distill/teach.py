"""The output of a frozen model for a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain import StepFunction, lazy_import, node

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(writes="teacher_output", family="compute")
class Teach:
    """Call ``teacher_step(teacher, batch)`` without gradients; the training step can take its `teacher_output`.

    The teacher is in evaluation mode, without dropout and with fixed batch-normalization statistics, and its parameters
    do not require gradients. It is saved like any resource; its weights do not change, so they are written only once,
    and with ``not_state="teacher"`` never.

    Source: Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2014.

    Reads:
        teacher_step: returns the value for the training step, such as logits.

    Writes:
        teacher_output: the returned value.

    >>> import torch
    >>> from graphtrain import Graph
    >>> def teacher_step(teacher, batch):
    ...     return teacher(batch)
    >>> teacher = torch.nn.Linear(2, 1)
    >>> graph = Graph.load("fit").overlay("distill")
    >>> graph.check()
    []
    """

    def setup(self, teacher: Any) -> None:
        teacher.eval().requires_grad_(False)

    def __call__(self, teacher: Any, batch: Any, teacher_step: StepFunction) -> Any:
        with torch.no_grad():
            return teacher_step(teacher, batch)
