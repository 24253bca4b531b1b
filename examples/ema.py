"""An exponential moving average of the weights, which is what is validated, on handwritten digits.

    graphtrain run examples/ema.py
    graphtrain run examples/ema.py ema.decay=0.9

A fifth of the training labels are wrong and the learning rate stays high to the end, so that the weights keep
jumping around a minimum; their average does not. The overlay `ema` inserts a node after `step`, and has
`validate` read the average.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from graphtrain import Graph, Loader

graph = Graph.load("fit").overlay("ema").set("ema", decay=0.99).set("finish", after="10 epochs")


def training_step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The loss and the accuracy of a batch."""
    images, digits = batch
    logits = model(images)
    return {
        "loss": nn.functional.cross_entropy(logits, digits),
        "accuracy": (logits.argmax(1) == digits).float().mean(),
    }


def setup(lr: float = 0.4, width: int = 64, batch_size: int = 8) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        lr: learning rate of SGD, which no schedule lowers.
        width: hidden units.
        batch_size: images per batch.
    """
    torch.set_num_threads(1)  # a network this small is slower with two
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, val = order[:1437], order[1437:]
    labels[train[:287]] = torch.randint(10, (287,), generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr),
        "train_data": Loader(TensorDataset(images[train], labels[train]), batch_size, shuffle=True),
        "val_data": Loader(TensorDataset(images[val], labels[val]), batch_size=360),
        "training_step": training_step,
    }
