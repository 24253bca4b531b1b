"""Meta-learning of sine waves: find initial weights that fit an unknown wave in a few steps on ten points.

    graphtrain run graphs/gallery/maml/maml_example.py
    graphtrain run graphs/gallery/maml/maml_example.py inner/adapt.second_order=false
    graphtrain run graphs/gallery/maml/maml_example.py inner/adapt.rate=1e-9

A task is a sine wave with an amplitude between 0.1 and 5 and any phase, as in Finn et al., "Model-agnostic
meta-learning for fast adaptation of deep networks", 2017. It has ten support points to adapt to and ten query points
to evaluate on. Each task is used once. The second command treats the gradients of the inner loop as constants
(first-order MAML); the third trains the same network on all waves without adaptation.

METRIC is the mean squared error on the query points of 300 other waves, after three steps from the trained weights on
the support points. BASELINE is the same for the third command. The first command reaches 0.7, the second 1.2.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from graphtrain import Graph, Loader

METRIC = "val/loss"
BASELINE = 2.3
LEVEL = 1.1

graph = (
    Graph.load("maml")
    .set("inner/adapt", steps=3, rate=0.01)
    .set("accumulate", every=5)
    .set("log", every="100 steps")
    .set("finish", after="1 epochs")
)

Points = tuple[torch.Tensor, torch.Tensor]


class SineWaves(torch.utils.data.Dataset[dict[str, Points]]):
    """Tasks, each with support points and query points."""

    def __init__(self, tasks: int, points: int, first: int = 0) -> None:
        self.tasks, self.points, self.first = tasks, points, first

    def __len__(self) -> int:
        return self.tasks

    def __getitem__(self, task: int) -> dict[str, Points]:
        random = torch.Generator().manual_seed(self.first + task)
        amplitude = 0.1 + 4.9 * torch.rand((), generator=random)
        phase = math.pi * torch.rand((), generator=random)
        inputs = 10 * torch.rand(2, self.points, 1, generator=random) - 5
        outputs = amplitude * torch.sin(inputs - phase)
        return {"support": (inputs[0], outputs[0]), "query": (inputs[1], outputs[1])}


def training_step(model: nn.Module, points: Points) -> torch.Tensor:
    """The error on a set of points, for the inner and the outer loop."""
    return nn.functional.mse_loss(model(points[0]), points[1])


def validation_step(model: nn.Module, task: dict[str, Points]) -> torch.Tensor:
    """The error of a copy of the model adapted to a task."""
    adapted = copy.deepcopy(model)
    optimizer = torch.optim.SGD(adapted.parameters(), lr=0.01)
    with torch.enable_grad():
        for _ in range(3):
            optimizer.zero_grad()
            training_step(adapted, task["support"]).backward()
            optimizer.step()
    return training_step(adapted, task["query"])


def setup(tasks: int = 5_000, points: int = 10, lr: float = 2e-3) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        tasks: how many sine waves there are.
        points: support points of each wave, and the number of its query points.
        lr: learning rate of Adam in the outer loop.
    """
    torch.set_num_threads(1)  # a network this small is slower with two
    model = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=lr),
        "train_data": Loader(SineWaves(tasks, points), batch_size=None),
        "val_data": Loader(SineWaves(300, points, first=1_000_000), batch_size=None),
        "training_step": training_step,
        "validation_step": validation_step,
    }
