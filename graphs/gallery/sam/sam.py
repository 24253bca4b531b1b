"""Sharpness-aware minimization on handwritten digits with 40% wrong training labels.

    graphtrain run graphs/gallery/sam/sam.py --overlay sam train_batch.radius=0.3 finish.after='50 epochs'

Plain training memorizes the wrong labels. The overlay `sam` computes each gradient at the weights within `radius` that
have the highest loss, so that training finds a flat minimum, where wrong labels fit less well.
"""

from typing import Annotated, Any

from graphtrain import Above, CallsTrainingStep, Repeated, StepFunction, lazy_import, node, parameters_of

datasets = lazy_import("sklearn.datasets")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")


@node(writes="loss", effects="backward")
class SamBatch(CallsTrainingStep):
    """Add the gradients at the weights reached by a step of length `radius` along the gradient.

    There are two passes on each batch, the first for that step and the second for the gradients; then the weights are
    restored. Gradients accumulated in an open window are kept. Both passes draw random numbers, for example for
    dropout, and update the statistics of batch normalization. With several ranks, each takes that step with the
    gradient of its own batch.
    Source: Foret et al., "Sharpness-aware minimization for efficiently improving generalization", 2021.

    Reads:
        training_step, window: as in `train_batch`.
        optimizer: the optimizer whose parameters take that step.

    Arguments:
        precision: as in `train_batch`, except "16-mixed". Default: "32-true".
        compile: as in `train_batch`. Default: False.
        radius: length of that step, as the norm over all parameters together. Default: 0.05.
        skip_none: as in `train_batch`. Default: False.

    Writes:
        loss: the loss of the first pass, at the current weights, detached; None for a skipped batch.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("sam").set("train_batch", radius=0.1)
    >>> graph.check()
    []
    """

    compile: bool = False
    radius: Annotated[float, Above(0)] = 0.05
    skip_none: bool = False

    def __call__(
        self, model: Any, batch: Any, training_step: StepFunction | Repeated, samples: int, optimizer: Any,
        window: int = 1,
    ) -> object:  # fmt: skip
        weights = [weight for weight in parameters_of(optimizer) if weight.requires_grad]
        loss = self.loss_of(training_step, model, batch, samples)
        if loss is None:
            return None
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        before = [weight.detach().clone() for weight in weights]
        length = nn.utils.get_total_norm(gradients) + 1e-12  # the gradient may be 0
        try:
            with torch.no_grad():
                torch._foreach_add_(weights, torch._foreach_mul(gradients, self.radius / length))
            (self.loss_of(training_step, model, batch) / window).backward()
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, before)
        return loss.detach()


def setup() -> dict[str, Any]:
    """The resources of the run."""
    from graphtrain import Loader

    pixels, digits = datasets.load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    train, val = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([1437, 360])
    labels[train[:575]] = torch.randint(10, (575,), generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "train_data": Loader(torch.utils.data.TensorDataset(images[train], labels[train]), 32, shuffle=True),
        "val_data": [(images[val], labels[val])],
        "training_step": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        "validation_step": lambda model, batch: {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()},
    }
