"""Forward and backward at the worst weights nearby."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from graphtrain import Above, CallsTrainingStep, Repeated, StepFunction, lazy_import, node, parameters_of

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(writes="loss", effects="backward")
class SamBatch(CallsTrainingStep):
    """Add the gradients at the weights to which a step of length `radius` along the gradient leads.

    There are two passes on each batch, the first for that step, the second for the gradients; then the weights are what
    they were. The gradients of an open window are kept. Both passes draw random numbers, as for dropout, and move the
    statistics of batch normalization. Each of several ranks makes that step with the gradient of its own batch.

    Source: Foret et al., "Sharpness-aware minimization for efficiently improving generalization", 2021.

    Reads:
        training_step, window: as of `train_batch`.
        optimizer: whose parameters make that step.

    Arguments:
        precision: as of `train_batch`, without "16-mixed". Default: "32-true".
        compile: as of `train_batch`. Default: False.
        radius: how long that step is, in the norm of all parameters together. Default: 0.05.

    Writes:
        loss: that of the first pass, at the weights as they are, detached.

    Guard fields:
        asking: as of `train_batch`.

    Raises:
        UsageError: what `training_step` returned is no loss.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("sam").set("train_batch", radius=0.1)
    >>> graph.check()
    []
    """

    compile: bool = False
    radius: Annotated[float, Above(0)] = 0.05

    def __call__(
        self,
        model: Any,
        batch: Any,
        training_step: StepFunction | Repeated,
        samples: int,
        optimizer: Any,
        window: int = 1,
    ) -> Any:
        weights = [weight for weight in parameters_of(optimizer) if weight.requires_grad]
        loss = self.loss_of(training_step, model, batch, samples)
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        before = [weight.detach().clone() for weight in weights]
        length = torch.nn.utils.get_total_norm(gradients) + 1e-12  # of a gradient that may be 0
        try:
            with torch.no_grad():
                torch._foreach_add_(weights, torch._foreach_mul(gradients, self.radius / length))
            (self.loss_of(training_step, model, batch) / window).backward()
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, before)
        return loss.detach()
