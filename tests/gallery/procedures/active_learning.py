"""Active learning: the samples of which a model is least sure are labelled, and a new one is trained."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain import Graph, Loader
from tests.gallery.procedure import Change, Procedure, Resources, without
from tests.gallery.procedures.kfold import make_model, make_optimizer, renewed

ROUNDS, EPOCHS, COUNT, SAMPLES, BATCH, POOL_BATCH = 2, 2, 3, 14, 3, 5


def graph() -> Graph:
    small = Graph.load("active_learning").set("finish", after=f"{ROUNDS} rounds")
    small = small.set("query/label_uncertain", count=COUNT).set("fit/finish", after=f"{EPOCHS} epochs")
    return small.set("fit/accumulate", every=2).set("fit/log", every="never").set("fit/checkpoint", every="never")


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def unsure(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return -model(batch).detach().flatten().abs()


def pool_step(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    scores = unsure(model, batch)
    return {"unsure": scores.mean(), "scores": scores}


def resources() -> Resources:
    torch.manual_seed(1)
    data = torch.randn(SAMPLES, 3, dtype=torch.float64)
    model = make_model()
    return {
        "model": model,
        "optimizer": make_optimizer(model),
        "train_data": Loader(data, BATCH, shuffle=True),
        "pool_data": Loader(data, POOL_BATCH),
        "val_data": Loader(data, 7),
        "training_step": training_step,
        "pool_step": pool_step,
    }


def most_uncertain(model: torch.nn.Module, data: torch.Tensor, labelled: list[int], count: int) -> list[int]:
    scores = [float(score) for batch in data.split(POOL_BATCH) for score in unsure(model.eval(), batch)]
    return sorted({*range(len(data))} - {*labelled}, key=lambda number: (scores[number], number), reverse=True)[:count]


def by_hand(resources: Resources) -> None:
    data, model = resources["train_data"].dataset, resources["model"]
    labelled: list[int] = []
    for number_of_round in range(ROUNDS):
        labelled += most_uncertain(model, data, labelled, COUNT)
        renewed(model.train())
        optimizer = resources["optimizer"] = make_optimizer(model)
        loader = Loader(data[labelled], BATCH, shuffle=True, seed=0)
        for epoch in range(EPOCHS):
            batches = list(loader.batches(number_of_round * EPOCHS + epoch))  # the loader of the run goes on
            for number, batch in enumerate(batches, 1):
                (training_step(model, batch) / 2).backward()
                if number % 2 == 0 or number == len(batches):
                    optimizer.step()
                    optimizer.zero_grad()


def with_pool(**options: Any) -> Change:
    def change(graph: Graph, resources: Resources) -> tuple[Graph, Resources]:
        data = options.pop("data", resources["train_data"].dataset)
        return graph, {**resources, "pool_data": Loader(data, POOL_BATCH, **options)}

    return change


def scoring(step: Any) -> Change:
    return lambda graph, resources: (graph, {**resources, "pool_step": step})


PROCEDURE = Procedure(
    name="active_learning",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer"),
    bad={
        "no step for the pool": (without("pool_step"), r"there is neither.*\n.*`pool_step`"),
        "an empty pool": (with_pool(data=[]), "`pool_data` has no samples"),
        "a shuffled pool": (with_pool(shuffle=True), r"`pool_data` has no samples in a known order\n.*unshuffled"),
        "one score for a batch": (
            scoring(lambda model, batch: {"unsure": 0.0, "scores": unsure(model, batch).mean()}),
            r"`scores` has the shape \[\] for 5 samples\n.*one for each",
        ),
    },
)
