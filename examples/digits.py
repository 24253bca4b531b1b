"""A small convolutional network with dropout on scikit-learn's handwritten digits: 1,797 real images of 8 x 8 pixels.

    graphtrain run examples/digits.py
    graphtrain run examples/digits.py lr=3e-3 accumulate.every=4 finish.after='30 epochs'
    graphtrain run examples/digits.py --overlay ema --overlay early_stop early_stop.patience=2

Validation accuracy is about 99 % after a few seconds of training on two cores. The third command validates the average
of the weights, and stops once that has not improved in two epochs, before the 20 epochs of the others.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from graphtrain import Graph, Loader

graph = Graph.load("fit").set("finish", after="20 epochs")


def training_step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The loss and the accuracy of a batch."""
    images, digits = batch
    logits = model(images)
    return {
        "loss": nn.functional.cross_entropy(logits, digits),
        "accuracy": (logits.argmax(1) == digits).float().mean(),
    }


def setup(
    lr: float = 5e-3, channels: int = 32, dropout: float = 0.3, batch_size: int = 32, workers: int = 0
) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        lr: learning rate of AdamW.
        channels: output channels of the first convolution; the second has twice as many.
        dropout: dropout probability.
        batch_size: images per batch.
        workers: number of loader workers.
    """
    torch.set_num_threads(1)  # a network this small is slower with two
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(digits)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, val = order[:1437], order[1437:]
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(dropout),
        nn.Linear(2 * channels * 16, 10),
    )  # fmt: skip
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=lr),
        "train_data": Loader(
            TensorDataset(images[train], labels[train]), batch_size, shuffle=True, num_workers=workers
        ),
        "val_data": Loader(TensorDataset(images[val], labels[val]), batch_size=360),
        "training_step": training_step,
    }
