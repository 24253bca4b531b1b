"""An autoencoder of handwritten digits and a classifier of its codes, each with its own loss and optimizer.

    graphtrain run graphs/gallery/yielding/yielding.py finish.after='20 epochs'

The graph `yielding` goes through the list `losses`: for each batch it first trains the autoencoder to reconstruct the
images, then the classifier to predict the digits from the codes. In each step, the parameters of the other optimizer
get no gradients, so the labels do not influence the codes. A checkpoint can be saved between the two losses of a batch.
"""

from collections.abc import Sequence
from typing import Any

from graphtrain import UsageError, described, lazy_import, node, optimizers_of, progress

datasets = lazy_import("sklearn.datasets")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")

graph = "yielding"


@node(writes="next_step", transient="next_step", family="compute")
class NextLoss:
    """Write a step function for the next loss of a batch; an edge leads back here while there are losses `left`.

    Reads:
        batches: number of batches so far; when it changes, the first loss is next.
        optimizer: several optimizers, in the order of their losses.
        losses: a list of step functions, each called with the model and the batch.

    Writes:
        next_step: read by `train_batch` as its `training_step`.

    Guard fields:
        index: index of the loss, from 0, which `train_batch` reads as its `turn`.
        left: there are further losses for the batch.
        of_batch: the value of `batches` for the current batch.

    Raises:
        UsageError: `losses` is not a list with one for each optimizer.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("yielding")
    >>> losses = [lambda model, batch: model.training_step(batch)]
    >>> graph.check()
    []
    """

    index: int = progress(0)
    left: bool = progress(False)
    of_batch: int = progress(-1)

    def __call__(self, batches: int, optimizer: Any, losses: Any) -> Any:
        self.index = self.index + 1 if batches == self.of_batch else 0
        count = len(optimizers_of(optimizer))
        self.of_batch, self.left = batches, self.index + 1 < count
        if not isinstance(losses, Sequence) or len(losses) != count:
            raise UsageError(f"`losses` is {described(losses)} for {count} optimizers", "supply a list of as many")
        return losses[self.index]


def reconstruction(model: Any, batch: Any) -> Any:
    """The loss of the autoencoder."""
    return nn.functional.mse_loss(model["decoder"](model["encoder"](batch[0])), batch[0])


def classification(model: Any, batch: Any) -> dict[str, Any]:
    """The loss and the accuracy of the classifier."""
    logits = model["classifier"](model["encoder"](batch[0]))
    accuracy = (logits.argmax(1) == batch[1]).float().mean()
    return {"loss": nn.functional.cross_entropy(logits, batch[1]), "accuracy": accuracy}


def setup() -> dict[str, Any]:
    """The resources of the run."""
    pixels, digits = datasets.load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    train, val = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([1437, 360])
    parts = {
        "encoder": nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)),
        "decoder": nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64)),
        "classifier": nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10)),
    }
    autoencoder = [*parts["encoder"].parameters(), *parts["decoder"].parameters()]
    return {
        "model": nn.ModuleDict(parts),
        "optimizer": (torch.optim.Adam(autoencoder, 3e-3), torch.optim.AdamW(parts["classifier"].parameters(), 3e-3)),
        "losses": [reconstruction, classification],
        "train_data": [*zip(images[train].split(16), labels[train].split(16), strict=True)],
        "val_data": [(images[val], labels[val])],
        "validation_step": classification,
    }
