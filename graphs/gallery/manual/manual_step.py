"""A batch for which the training step does everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain import CallsTrainingStep, StepFunction, lazy_import, node, optimizers_of, progress

if TYPE_CHECKING:
    import torch.optim.optimizer as hooks
else:
    hooks = lazy_import("torch.optim.optimizer")


@node(effects=("zero_grad", "backward", "step"))
class ManualStep(CallsTrainingStep):
    """Call ``training_step(model, batch)``, which runs backward, steps the optimizer and clears gradients itself.

    It can take `optimizer` and other resources as arguments by name, such as further optimizers or a scheduler.
    Gradients that it keeps for the next batch are saved with the run. It runs in one process only: ranks cannot
    exchange gradients in the middle of a function.

    Reads:
        training_step: returns a loss, a mapping of metrics (numbers or scalars), or nothing.
        optimizer: the optimizer or optimizers whose steps are counted.

    Arguments:
        precision: as in `train_batch`; it applies to the whole function. Default: "32-true".

    Guard fields:
        steps: steps of `optimizer` since the start, including those without an effect.

    Raises:
        UsageError: `training_step` returned something other than metrics.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("manual").set("validate", every="never")
    >>> def training_step(model, batch, optimizer):
    ...     loss = model.training_step(batch)
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> graph.check()
    []
    """

    steps: int = progress(0)

    def __call__(self, model: Any, batch: Any, training_step: StepFunction, samples: int, optimizer: Any) -> None:
        def count(stepped: Any, *_: Any) -> None:
            self.steps += stepped in optimizers_of(optimizer)

        with hooks.register_optimizer_step_post_hook(count):
            result = self.result_of(training_step, model, batch)
        self.record(result, samples)
