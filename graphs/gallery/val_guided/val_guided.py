"""Training guided by an evaluation, on handwritten digits: gradients are divided by the error on held-out images.

    graphtrain run graphs/gallery/val_guided/val_guided.py --overlay val_guided guide.metric=guiding/error \
        finish.after='4 epochs'

While most images of `guiding_data` are misclassified, steps are small; once most are correct, steps are up to a hundred
times larger. The overlay `val_guided` evaluates between backward and step. Validation uses other images.
"""

from collections.abc import Mapping
from typing import Any

from graphtrain import Metric, UsageError, lazy_import, node, parameters_of

datasets = lazy_import("sklearn.datasets")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")


@node(effects="divide")
def guide(optimizer: Any, metrics: Mapping[str, float], *, metric: Metric = "guiding/loss") -> None:
    """Divide the gradients of `optimizer` by a metric of an evaluation, such as the loss on held-out data.

    Reads:
        metrics: the metrics written by a node with the graph `evaluate`.

    Arguments:
        metric: name of the metric. Default: "guiding/loss".

    Raises:
        UsageError: the evaluation does not give this metric, or it is not above 0.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("val_guided").set("guiding", reads={"val_data": "val_data"})
    >>> graph.check()
    []
    """
    if not (value := metrics.get(metric, 0.0)) > 0:
        message = f"guide divides by {metric}, which must be above 0; the evaluation gave {dict(metrics)}"
        raise UsageError(message, "supply data for the evaluation, and set guide.metric to a metric above 0")
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None:
            parameter.grad /= value


def training_step(model: Any, batch: Any) -> dict[str, Any]:
    """The loss, the accuracy and the error rate of a batch."""
    logits = model(batch[0])
    accuracy = (logits.argmax(1) == batch[1]).float().mean()
    return {"loss": nn.functional.cross_entropy(logits, batch[1]), "accuracy": accuracy, "error": 1.01 - accuracy}


def setup() -> dict[str, Any]:
    """The resources of the run."""
    pixels, digits = datasets.load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    train, guiding, val = order.split([1300, 137, 360])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "train_data": [*zip(images[train].split(8), labels[train].split(8), strict=True)],
        "guiding_data": [(images[guiding], labels[guiding])],
        "val_data": [(images[val], labels[val])],
        "training_step": training_step,
    }
