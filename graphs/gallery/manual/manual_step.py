"""A batch for which the user's function does everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain import CallsTrainingStep, StepFunction, lazy_import, node, optimizers_of, progress

if TYPE_CHECKING:
    import torch.optim.optimizer as hooks
else:
    hooks = lazy_import("torch.optim.optimizer")


@node(effects=("zero_grad", "backward", "step"))
class ManualStep(CallsTrainingStep):
    """Call ``training_step(model, batch)``, which runs backward, steps and clears gradients itself.

    It may ask for `optimizer`, or other resources by name: several optimizers, a schedule. Gradients that it leaves for
    the next batch are saved with the run. It is for one process: several ranks cannot exchange gradients that they do
    not know of.

    Reads:
        training_step: returns a loss, a mapping of metrics (numbers or scalars), or nothing.
        optimizer: one or several, whose steps are counted.

    Arguments:
        precision: as of `train_batch`; the whole function runs in it. Default: "32-true".

    Guard fields:
        steps: steps of `optimizer` since the start, those without an effect too.
        asking: as of `train_batch`.

    Raises:
        UsageError: what `training_step` returned is no metrics.

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
