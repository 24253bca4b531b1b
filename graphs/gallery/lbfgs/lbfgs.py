"""LBFGS fits a small network to a function of one variable, with all training data in each batch.

    graphtrain run graphs/gallery/lbfgs/lbfgs.py validate.every='10 steps' finish.after='100 epochs'

In the graph `lbfgs`, one node lets the optimizer compute the loss and its gradients as often as its line search needs
them, about 1,600 times in 100 steps. `val/loss` is the mean squared error at points between the training points.
"""

import itertools
from typing import Any, Literal

from graphtrain import CallsTrainingStep, Repeated, StepFunction, lazy_import, node, parameters_of, progress

torch = lazy_import("torch")
nn = lazy_import("torch.nn")

graph = "lbfgs"


@node(writes="loss", effects=("zero_grad", "backward", "exchange", "step"), synchronises=True)
class ClosureStep(CallsTrainingStep):
    """Step `optimizer` with a closure that clears gradients, calls ``training_step(model, batch)`` and runs backward.

    Use it for one optimizer that evaluates the loss several times per step, such as ``torch.optim.LBFGS``. Metrics come
    from the first evaluation. With several ranks, every evaluation sums gradients and losses over all ranks, so that a
    line search takes the same decisions on each; a rank without a batch contributes zeros.
    Source: Nocedal, "Updating quasi-Newton matrices with limited storage", 1980.

    Reads:
        training_step: as in `train_batch`.
        window: divides the loss, so that the sum over ranks is a mean: ``next_batch.round_batches``.

    Arguments:
        precision: as in `train_batch`, except "16-mixed", whose loss scale would change in the middle of a step.
            Default: "32-true".

    Writes:
        loss: the loss before the step, over all ranks.

    Guard fields:
        steps: steps taken since the start.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("lbfgs").set("step", precision="bf16-mixed")
    >>> graph.check()
    []
    """

    precision: Literal["32-true", "bf16-mixed"] = "32-true"

    steps: int = progress(0, adds=1)

    def __call__(
        self, model: Any, batch: Any, training_step: StepFunction | Repeated, samples: int, optimizer: Any,
        window: int = 1, ranks: Any = None,
    ) -> object:  # fmt: skip
        evaluations = itertools.count()

        def closure() -> Any:
            optimizer.zero_grad()
            loss = parameters_of(optimizer)[0].new_zeros(())
            if batch is not None:
                loss = self.loss_of(training_step, model, batch, samples if next(evaluations) == 0 else None)
                (loss / window).backward()
            loss = loss.detach() / window
            if ranks is None:
                return loss
            ranks.exchange(parameters_of(optimizer))
            return loss.new_tensor(sum(ranks.gather(loss.item())))

        self.steps += 1
        return optimizer.step(closure)


def setup() -> dict[str, Any]:
    """The resources of the run."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    points = torch.linspace(0, 2, 401, dtype=torch.float64).unsqueeze(1)
    values = torch.sin(2 * torch.pi * points.square()) * torch.exp(-points)  # a wave with increasing frequency
    return {
        "model": model,
        "optimizer": torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe"),
        "train_data": [(points[::2], values[::2])],
        "val_data": [(points[1::2], values[1::2])],
        "training_step": lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
    }
