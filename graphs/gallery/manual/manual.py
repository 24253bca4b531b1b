"""Manual optimization on handwritten digits: the training step does forward, backward, steps and schedules itself.

    graphtrain run graphs/gallery/manual/manual.py finish.after='20 epochs'

The graph `manual` calls the function for every batch; metrics, validation, checkpoints and exact resuming work as in
`fit`.
"""

from typing import Any

from graphtrain import CallsTrainingStep, StepFunction, lazy_import, node, optimizers_of, progress

datasets = lazy_import("sklearn.datasets")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")
hooks = lazy_import("torch.optim.optimizer")

graph = "manual"


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
            self.record(self.result_of(training_step, model, batch), samples)


def training_step(model: Any, batch: Any, batch_index: int, optimizer: Any, head_optimizer: Any, scheduler: Any) -> Any:
    """Accumulate the gradients of two batches, then clip them and step both optimizers and the scheduler."""
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    (loss / 2).backward()
    if batch_index % 2 == 1:
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        for each in (optimizer, head_optimizer):
            each.step()
            each.zero_grad()
        scheduler.step()
    return loss


def setup() -> dict[str, Any]:
    """The resources of the run."""
    pixels, digits = datasets.load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    train, val = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([1437, 360])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    head_optimizer = torch.optim.AdamW(model[3].parameters(), lr=3e-3)
    return {
        "model": model,
        "optimizer": torch.optim.RMSprop(model[0].parameters(), lr=3e-3),
        "head_optimizer": head_optimizer,
        "scheduler": torch.optim.lr_scheduler.ExponentialLR(head_optimizer, 0.999),
        "train_data": [*zip(images[train].split(16), labels[train].split(16), strict=True)],
        "val_data": [(images[val], labels[val])],
        "training_step": training_step,
        "validation_step": lambda model, batch: {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()},
    }
