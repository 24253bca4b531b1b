"""Steps of LBFGS with a line search, which evaluates the loss several times a batch."""

from __future__ import annotations

import torch

from graphtrain import Graph, fit
from tests.procedure import Procedure, Resources, network, numbers, short

EPOCHS = 2


def graph() -> Graph:
    return short(Graph.load("lbfgs"), EPOCHS)


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    errors = model(batch) - batch.sum(1, keepdim=True).sin()
    return {"loss": errors.square().mean(), "largest": errors.abs().max()}


def resources() -> Resources:
    model = network(torch.nn.Tanh(), torch.nn.Dropout(0.1))
    return {
        "model": model,
        "optimizer": torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3, line_search_fn="strong_wolfe"),
        "train_data": numbers(6, 6, 6, 6),
        "val_data": numbers(6),
        "training_step": training_step,
        "validation_step": training_step,
    }


def by_hand(resources: Resources) -> None:
    model, optimizer = resources["model"], resources["optimizer"]
    for batch in resources["train_data"] * EPOCHS:

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = training_step(model, batch)["loss"]
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)


PROCEDURE = Procedure(
    "lbfgs",
    graph,
    resources,
    by_hand,
    bad={
        "the graph fit": (
            lambda it: it.but(fit(epochs=1)),
            "LBFGS, which needs a closure to compute the loss several times",
        ),
    },
)
