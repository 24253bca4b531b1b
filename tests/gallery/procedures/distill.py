"""A student learns what a frozen teacher, in evaluation mode, makes of each batch."""

from __future__ import annotations

import torch
from torch.nn.functional import kl_div, log_softmax

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources

EPOCHS, BATCHES, WINDOW = 3, 5, 2


def graph() -> Graph:
    small = Graph.load("fit").overlay("distill").set("accumulate", every=WINDOW)
    return small.set("finish", after=f"{EPOCHS} epochs").set("checkpoint", every="2 steps").set("log", every="1 steps")


def teacher_step(teacher: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return teacher(batch)


def training_step(model: torch.nn.Module, batch: torch.Tensor, teacher_output: torch.Tensor) -> torch.Tensor:
    targets, logits = (log_softmax(each / 2.0, 1) for each in (teacher_output, model(batch)))
    return kl_div(logits, targets, reduction="batchmean", log_target=True)


def network(width: int) -> torch.nn.Module:
    layers = torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 4)
    return torch.nn.Sequential(*layers).double()


def resources() -> Resources:
    torch.manual_seed(1)
    model, teacher = network(4), network(8)
    return {
        "model": model,
        "teacher": teacher,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        "train_data": [torch.randn(4, 3, dtype=torch.float64) for _ in range(BATCHES)],
        "training_step": training_step,
        "teacher_step": teacher_step,
    }


def by_hand(resources: Resources) -> None:
    model, teacher, optimizer = resources["model"], resources["teacher"], resources["optimizer"]
    teacher.eval()
    for _ in range(EPOCHS):
        passes = 0
        for number, batch in enumerate(resources["train_data"]):
            with torch.no_grad():
                output = teacher(batch)
            (training_step(model, batch, output) / WINDOW).backward()
            passes += 1
            if passes == WINDOW or number == BATCHES - 1:
                optimizer.step()
                optimizer.zero_grad()
                passes = 0


PROCEDURE = Procedure(
    name="distill",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "teacher", "optimizer"),
)
