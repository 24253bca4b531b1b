"""A student learns what a frozen teacher, in evaluation mode, makes of each batch."""

from __future__ import annotations

import torch
from torch.nn.functional import kl_div, log_softmax

from graphtrain import Graph
from tests.procedure import Procedure, Resources, momentum, network, numbers, short, step, windows

EPOCHS, WINDOW = 3, 2


def graph() -> Graph:
    return short(Graph.load("fit").overlay("distill"), EPOCHS, WINDOW).set("checkpoint", every="2 steps")


def teacher_step(teacher: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = teacher(batch)
    return output


def training_step(model: torch.nn.Module, batch: torch.Tensor, teacher_output: torch.Tensor) -> torch.Tensor:
    targets, logits = (log_softmax(each / 2.0, 1) for each in (teacher_output, model(batch)))
    return kl_div(logits, targets, reduction="batchmean", log_target=True)


def resources() -> Resources:
    teacher, model = network(width=8, outputs=4), network(outputs=4)
    return {
        "model": model,
        "teacher": teacher,
        "optimizer": momentum(model, 0.5),
        "train_data": numbers(4, 4, 4, 4, 4),
        "training_step": training_step,
        "teacher_step": teacher_step,
    }


def by_hand(resources: Resources) -> None:
    teacher = resources["teacher"].eval()
    for _, batch, is_end in windows(resources["train_data"], EPOCHS, WINDOW):
        with torch.no_grad():
            output = teacher(batch)
        (training_step(resources["model"], batch, output) / WINDOW).backward()  # type: ignore[no-untyped-call]
        if is_end:
            step(resources["optimizer"])


PROCEDURE = Procedure("distill", graph, resources, by_hand, compared=("model", "optimizer"))
