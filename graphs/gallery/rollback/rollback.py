"""Returning to a checkpoint when the loss spikes, on handwritten digits of which three are corrupted.

    graphtrain run graphs/gallery/rollback/rollback.py --overlay rollback --run-dir runs/rollback rollback.warmup=5 \
        rollback.skip=2 rollback.most=100 checkpoint.every='5 batches' finish.after='6 epochs'

Three of the images are white and ten thousand times too bright. A single step with one of them ruins the weights, and
training does not recover. The overlay `rollback` returns to the last checkpoint instead, and skips the batches that led
to the spike.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

from graphtrain import Above, NotFiniteError, lazy_import, node, progress

datasets = lazy_import("sklearn.datasets")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")


@node(synchronises=True, family="saving", optional="deviations")
class Rollback:
    """Return to the last checkpoint if the loss of a batch spikes, and skip that batch and those before it.

    The run returns to the last checkpoint with finite weights, except for the progress of this node, and trains again
    from there. A guard reads `skipped`, so that skipped batches are fetched but not trained on. Before the first
    checkpoint, a spike is reported and training continues, but a non-finite loss ends the run. With several ranks, the
    mean of their losses is used. Every visit synchronizes with the device.
    Sources: Chowdhery et al., "PaLM: scaling language modeling with pathways", 2022, section 5.1; Kumar et al., "ZClip:
    adaptive spike mitigation for LLM pre-training", 2025.

    Reads:
        loss: the loss of the batch.

    Arguments:
        deviations: a loss is a spike if it is not finite, or more than this many standard deviations above the mean of
            about 100 losses before it. Infinity disables the node. Default: 10.
        warmup: losses before the mean is considered known; only a non-finite one can be a spike. Default: 25.
        skip: number of batches of the epoch to skip, over all ranks; the last is the one that spiked. Default: 10.
        most: how often the run may return before an error is raised. Default: 10.

    Guard fields:
        skipped: the batch just fetched is to be skipped.
        skips: all batches to skip, each as its epoch and its index in the epoch.
        mean, variance: of the losses so far.
        losses: number of losses so far.

    Raises:
        NotFiniteError: the run has returned `most` times, or there is no checkpoint to return to.
        UsageError: there is no run directory.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("rollback").set("rollback", deviations=6.0, skip=200)
    >>> graph.check()
    []
    """

    deviations: Annotated[float, Above(0)] = 10.0
    warmup: Annotated[int, Above(0)] = 25
    skip: Annotated[int, Above(0)] = 10
    most: Annotated[int, Above(0)] = 10
    skips: list[list[int]] = progress([])
    mean: float = progress(0.0)
    variance: float = progress(0.0)
    losses: int = progress(0)

    def setup(self, history: Any, notify: Callable[[str], None], ranks: Any = None) -> None:
        self._history, self._notify, self._ranks = history, notify, ranks

    @property
    def skipped(self) -> bool:
        return bool(self.skips) and self._history.batches()[0] in self.skips

    def __call__(self, loss: Any) -> None:
        losses = [loss] if self._ranks is None else self._ranks.gather(None if loss is None else float(loss))
        known = [float(each) for each in losses if each is not None]
        if not known:  # no rank has a loss where all of them skip a batch
            return
        value = sum(known) / len(known)
        limit = self.mean + self.deviations * math.sqrt(self.variance) if self.losses >= self.warmup else math.inf
        if math.isfinite(seen := min(value, limit)):
            self.losses += 1
            weight, difference = max(0.01, 1 / self.losses), seen - self.mean  # 0.01: over about 100 losses
            self.mean += weight * difference
            self.variance = (1 - weight) * (self.variance + weight * difference**2)
        if value <= limit and math.isfinite(value):
            return
        if self._history.restore(most=self.most):
            batches = self._history.batches(self.skip)
            self.skips = [*self.skips, *batches]
            epoch, number = batches[0]
            above = f", above {limit:.4g}" if math.isfinite(value) else ""
            self._notify(f"`rollback`: the loss is {value:.4g} at batch {number + 1} of epoch {epoch + 1}{above}")
            return
        hint = "set checkpoint.every to save one earlier"
        if not math.isfinite(value):
            [[epoch, number]] = self._history.batches()
            spike = f"the loss is {value} at batch {number + 1} of epoch {epoch + 1}"
            raise NotFiniteError(f"{spike}; there is no checkpoint with finite weights to go back to", hint)
        self._notify(f"`rollback`: a loss spikes before the first checkpoint, and training continues; {hint}")


def setup() -> dict[str, Any]:
    """The resources of the run."""
    pixels, digits = datasets.load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    train, val = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([1437, 360])
    images[train[400::400]] = 10_000.0  # with three labels, of which no training can learn more than one
    labels[train[400::400]] = torch.arange(3)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "train_data": [*zip(images[train].split(16), labels[train].split(16), strict=True)],
        "val_data": [(images[val], labels[val])],
        "training_step": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        "validation_step": lambda model, batch: {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()},
    }
