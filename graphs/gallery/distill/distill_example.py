"""Distillation on handwritten digits: a student without labels learns from a teacher's predictions on 1,000 images.

    graphtrain run graphs/gallery/distill/distill_example.py
    graphtrain run graphs/gallery/distill/distill_example.py temperature=1

The teacher was trained with the labels of these images. The student, a smaller network, does not get the labels but the
softened predictions of the teacher. The overlay `distill` calls the teacher before each step.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from graphtrain import Graph, Loader

METRIC = "val/accuracy"
BASELINE = 0.71  # of the same student, trained with 30 labels: mean of three seeds, between 0.70 and 0.72
LEVEL = 0.89  # with each of these seeds

graph = Graph.load("fit").overlay("distill").set("finish", after="5 epochs")


def teacher_step(teacher: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The teacher's logits for a batch."""
    return teacher(batch[0])


def validation_step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The accuracy of the student."""
    return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}


def setup(lr: float = 0.01, temperature: float = 2.0, teacher_steps: int = 60) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        lr: learning rate of Adam.
        temperature: divides the logits of both networks.
        teacher_steps: training steps of the teacher.
    """
    torch.set_num_threads(1)  # a network this small is slower with two
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, val = order[:1000], order[1000:]
    teacher = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
    for _ in range(teacher_steps):
        nn.functional.cross_entropy(teacher(images[train]), labels[train]).backward()
        optimizer.step()
        optimizer.zero_grad()
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def training_step(model: nn.Module, batch: tuple[torch.Tensor, ...], teacher_output: torch.Tensor) -> torch.Tensor:
        targets = torch.softmax(teacher_output / temperature, 1)
        return nn.functional.cross_entropy(model(batch[0]) / temperature, targets) * temperature**2

    return {
        "model": model,
        "teacher": teacher,
        "optimizer": torch.optim.Adam(model.parameters(), lr=lr),
        "train_data": Loader(TensorDataset(images[train]), batch_size=16, shuffle=True),
        "val_data": Loader(TensorDataset(images[val], labels[val]), batch_size=400),
        "training_step": training_step,
        "validation_step": validation_step,
        "teacher_step": teacher_step,
    }
