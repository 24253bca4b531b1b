"""Active learning: the samples of which a model is least sure are labelled, and a new one is trained."""

from __future__ import annotations

import torch

from graphtrain import Graph, Loader
from tests.procedure import Procedure, Resources, momentum, network, numbers, squared_error, train_again

ROUNDS, EPOCHS, COUNT, SAMPLES, BATCH, POOL_BATCH = 2, 2, 3, 14, 3, 5


def graph() -> Graph:
    small = Graph.load("active_learning").set("finish", after=f"{ROUNDS} rounds")
    small = small.set("query/label_uncertain", count=COUNT).set("fit/finish", after=f"{EPOCHS} epochs")
    return small.set("fit/accumulate", every=2).set("fit/log", every="never").set("fit/checkpoint", every="never")


def unsure(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return -model(batch).detach().flatten().abs()


def pool_step(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    scores = unsure(model, batch)
    return {"unsure": scores.mean(), "scores": scores}


def one_score(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"unsure": torch.zeros(()), "scores": unsure(model, batch).mean()}


def resources() -> Resources:
    model, data = network(), numbers(SAMPLES)[0]
    return {
        "model": model,
        "optimizer": momentum(model),
        "train_data": Loader(data, BATCH, shuffle=True),
        "pool_data": Loader(data, POOL_BATCH),
        "val_data": Loader(data, 7),
        "training_step": squared_error,
        "pool_step": pool_step,
    }


def most_uncertain(model: torch.nn.Module, data: torch.Tensor, labelled: list[int], count: int) -> list[int]:
    scores = [float(score) for batch in data.split(POOL_BATCH) for score in unsure(model.eval(), batch)]
    return sorted({*range(len(data))} - {*labelled}, key=lambda number: (scores[number], number), reverse=True)[:count]


def by_hand(resources: Resources) -> None:
    data, labelled = resources["train_data"].dataset, list[int]()
    for number in range(ROUNDS):
        labelled += most_uncertain(resources["model"], data, labelled, COUNT)
        resources["model"].train()
        train_again(resources, Loader(data[labelled], BATCH, shuffle=True, seed=0), EPOCHS, number)


PROCEDURE = Procedure(
    name="active_learning",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    bad={
        "no step for the pool": (lambda it: it.but(pool_step=None), r"there is neither"),
        "an empty pool": (lambda it: it.but(pool_data=Loader([], POOL_BATCH)), "`pool_data` is empty or shuffled"),
        "a shuffled pool": (
            lambda it: it.but(pool_data=lambda made: Loader(made["train_data"].dataset, POOL_BATCH, shuffle=True)),
            r"`pool_data` is empty or shuffled\n.*unshuffled",
        ),
        "one score for a batch": (
            lambda it: it.but(pool_step=lambda made: one_score),
            r"`scores` has the shape \[\] for 5 samples\n.*one for each",
        ),
    },
)
