"""Meta-learning: an inner loop that adapts weights to a task, and an outer one that trains them; of the first order."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain import Graph
from tests.gallery.procedure import Change, Procedure, Resources

EPOCHS, TASKS, INNER_STEPS, RATE = 2, 5, 3, 0.03


def graph(second_order: bool = False) -> Graph:
    small = Graph.load("maml").set("finish", after=f"{EPOCHS} epochs").set("accumulate", every=2)
    small = small.set("inner/adapt", steps=INNER_STEPS, rate=RATE, second_order=second_order)
    return small.set("checkpoint", every="never").set("log", every="1 steps")


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def resources() -> Resources:
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    model[0].bias.requires_grad = False  # what is frozen is not adapted
    tasks = [torch.randn(2, 4, 3, dtype=torch.float64) * (1 + number) / 3 for number in range(TASKS)]
    return {
        "model": model,
        "optimizer": torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.05, momentum=0.9),
        "train_data": [{"support": task[0], "query": task[1]} for task in tasks],
        "training_step": training_step,
    }


def by_hand(resources: Resources, second_order: bool = False) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}

    def loss_at(weights: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        outputs = torch.func.functional_call(model, weights, (batch,))
        return (outputs - batch.sum(1, keepdim=True)).square().mean()

    for _ in range(EPOCHS):
        for number, task in enumerate(resources["train_data"], 1):
            shift = {name: torch.zeros_like(weight) for name, weight in trained.items()}
            for _ in range(INNER_STEPS):
                weights = {name: weight + shift[name] for name, weight in trained.items()}
                loss = loss_at(weights, task["support"])
                gradients = torch.autograd.grad(loss, tuple(weights.values()), create_graph=second_order)
                shift = {name: shift[name] - RATE * each for name, each in zip(trained, gradients, strict=True)}
            weights = {name: weight + shift[name] for name, weight in trained.items()}
            (loss_at(weights, task["query"]) / 2).backward()
            if number % 2 == 0 or number == TASKS:
                optimizer.step()
                optimizer.zero_grad()


def with_data(change: Any) -> Change:
    return lambda graph, resources: (graph, {**resources, "train_data": list(map(change, resources["train_data"]))})


PROCEDURE = Procedure(
    name="maml",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer"),
    bad={
        "batches that are no tasks": (
            with_data(lambda task: task["support"]),
            r"`adapt`: the batch is a tensor of shape \(4, 3\)\n.*a task is",
        ),
        "tasks without a query": (
            with_data(lambda task: {"support": task["support"]}),
            r"`adapt`: the batch is .*\n.*a task is",
        ),
    },
)
