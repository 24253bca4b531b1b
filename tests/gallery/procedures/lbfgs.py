"""Steps of LBFGS with a line search, which evaluates the loss several times a batch."""

from __future__ import annotations

import torch

from graphtrain import Graph
from tests.gallery.procedure import Procedure, Resources

EPOCHS, BATCHES = 2, 4


def graph() -> Graph:
    small = Graph.load("lbfgs").set("finish", after=f"{EPOCHS} epochs")
    return small.set("checkpoint", every="never").set("log", every="1 steps")


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    errors = model(batch) - batch.sum(1, keepdim=True).sin()
    return {"loss": errors.square().mean(), "largest": errors.abs().max()}


def resources() -> Resources:
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    return {
        "model": model,
        "optimizer": torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3, line_search_fn="strong_wolfe"),
        "train_data": [torch.randn(6, 3, dtype=torch.float64) for _ in range(BATCHES)],
        "val_data": [torch.randn(6, 3, dtype=torch.float64)],
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


def with_the_graph_fit(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
    return Graph.load("fit").set("finish", after="1 epochs"), resources


def with_two_optimizers(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
    model = resources["model"]
    second = torch.optim.LBFGS(model[3].parameters())
    return graph.set("step", reads={"optimizer": ["optimizer", "second"]}), {**resources, "second": second}


PROCEDURE = Procedure(
    name="lbfgs",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer"),
    bad={
        "the graph fit": (with_the_graph_fit, "`LBFGS` computes the loss itself, several times"),
        "two optimizers": (with_two_optimizers, "`closure_step` steps one optimizer, and reads 2"),
    },
)
