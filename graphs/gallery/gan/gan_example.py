"""A generative adversarial network for points on a circle.

    graphtrain run graphs/gallery/gan/gan_example.py
    graphtrain run graphs/gallery/gan/gan_example.py alternate.every=3 finish.after='30 epochs'

`val/distance` is the energy distance between 2,000 generated points and 2,000 held-out points of the circle; it is 0 if
both have the same distribution. The graph `gan` trains the critic on every batch, and the generator after every
`alternate.every` critic steps; in each step, the other network gets no gradients.
Source: Goodfellow et al., "Generative adversarial nets", 2014.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import softplus

from graphtrain import Graph, Loader

METRIC = "val/distance"
BASELINE = 1.28  # untrained: of five seeds, the least
LEVEL = 0.02  # ends between 0.002 and 0.004, with three seeds

graph = Graph.load("gan").set("alternate", every=1).set("finish", after="20 epochs")


def ring(count: int, seed: int) -> torch.Tensor:
    """Points near a circle, shape (count, 2)."""
    generator = torch.Generator().manual_seed(seed)
    angles = torch.rand(count, generator=generator) * 2 * math.pi
    return torch.stack([angles.cos(), angles.sin()], 1) * 2 + 0.1 * torch.randn(count, 2, generator=generator)


def network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    first, second = nn.Linear(inputs, width), nn.Linear(width, width)
    return nn.Sequential(first, nn.LeakyReLU(0.2), second, nn.LeakyReLU(0.2), nn.Linear(width, outputs))


def generated(model: nn.ModuleDict, count: int) -> torch.Tensor:
    """Generated points, shape (count, 2)."""
    return model["generator"](torch.randn(count, 4))


def critic_loss(model: nn.ModuleDict, batch: torch.Tensor) -> torch.Tensor:
    """The loss of the critic, which tells real points from generated ones."""
    fake = generated(model, len(batch))
    return softplus(-model["critic"](batch)).mean() + softplus(model["critic"](fake)).mean()


def generator_loss(model: nn.ModuleDict, batch: torch.Tensor) -> torch.Tensor:
    """The loss of the generator, which tries to deceive the critic."""
    return softplus(-model["critic"](generated(model, len(batch)))).mean()


def validation_step(model: nn.ModuleDict, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    """The energy distance (Székely and Rizzo, 2013)."""
    fake = generated(model, len(batch))
    between = torch.cdist(fake, batch).mean()
    return {"distance": 2 * between - torch.cdist(fake, fake).mean() - torch.cdist(batch, batch).mean()}


def setup(lr: float = 5e-4, width: int = 64, batch_size: int = 256) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        lr: learning rate of both networks.
        width: hidden units of each of their layers.
        batch_size: points per batch.
    """
    torch.set_num_threads(1)  # networks this small are slower with two
    model = nn.ModuleDict({"generator": network(4, width, 2), "critic": network(2, width, 1)})
    return {
        "model": model,
        "critic_optimizer": torch.optim.Adam(model["critic"].parameters(), lr, betas=(0.5, 0.9)),
        "generator_optimizer": torch.optim.Adam(model["generator"].parameters(), lr, betas=(0.5, 0.9)),
        "train_data": Loader(ring(20_000, 0), batch_size, shuffle=True),
        "val_data": Loader(ring(2_000, 1), batch_size=2_000),
        "critic_loss": critic_loss,
        "generator_loss": generator_loss,
        "validation_step": validation_step,
    }
