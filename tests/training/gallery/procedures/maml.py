"""Meta-learning: an inner loop that adapts weights to a task, and an outer one that trains them; of the first order."""

from __future__ import annotations

import torch

from graphtrain import Graph
from tests.procedure import Procedure, Resources, momentum, network, short, squared_error, step, windows

EPOCHS, TASKS, INNER_STEPS, RATE = 2, 5, 3, 0.03


def graph(second_order: bool = False) -> Graph:
    small = Graph.load("maml").set("inner/adapt", steps=INNER_STEPS, rate=RATE, second_order=second_order)
    return short(small, EPOCHS, 2)


def resources() -> Resources:
    model = network(torch.nn.Tanh(), torch.nn.Dropout(0.2))
    model[0].bias.requires_grad = False  # type: ignore[union-attr]  # what is frozen is not adapted
    tasks = [torch.randn(2, 4, 3, dtype=torch.float64) * (1 + number) / 3 for number in range(TASKS)]
    return {
        "model": model,
        "optimizer": momentum(model),
        "train_data": [{"support": task[0], "query": task[1]} for task in tasks],
        "training_step": squared_error,
    }


def by_hand(resources: Resources, second_order: bool = False) -> None:
    model = resources["model"]
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}

    def loss_at(weights: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        outputs = torch.func.functional_call(model, weights, (batch,))
        return (outputs - batch.sum(1, keepdim=True)).square().mean()

    for _, task, is_end in windows(resources["train_data"], EPOCHS, 2):
        shift = {name: torch.zeros_like(weight) for name, weight in trained.items()}
        for _ in range(INNER_STEPS):
            weights = {name: weight + shift[name] for name, weight in trained.items()}
            loss = loss_at(weights, task["support"])
            gradients = torch.autograd.grad(loss, tuple(weights.values()), create_graph=second_order)
            shift = {name: shift[name] - RATE * each for name, each in zip(trained, gradients, strict=True)}
        weights = {name: weight + shift[name] for name, weight in trained.items()}
        (loss_at(weights, task["query"]) / 2).backward()  # type: ignore[no-untyped-call]
        if is_end:
            step(resources["optimizer"])


PROCEDURE = Procedure("maml", graph, resources, by_hand)
