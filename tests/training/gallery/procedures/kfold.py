"""Cross-validation: a new model for each fold, the metrics of what it holds out, and all models as an ensemble."""

from __future__ import annotations

import torch

from graphtrain import Graph, Loader
from tests.procedure import Procedure, Resources, momentum, network, numbers, squared_error, train_again

FOLDS, EPOCHS, SAMPLES, BATCH = 3, 2, 13, 3


def graph() -> Graph:
    small = Graph.load("kfold").set("begin_fold", folds=FOLDS).set("fit/finish", after=f"{EPOCHS} epochs")
    return small.set("fit/accumulate", every=2).set("fit/log", every="2 steps").set("fit/checkpoint", every="never")


def ensemble(count: int) -> torch.nn.ModuleList:
    return torch.nn.ModuleList(network() for _ in range(count))


def resources() -> Resources:
    models, model, data = ensemble(FOLDS), network(), numbers(SAMPLES)[0]
    return {
        "model": model,
        "optimizer": momentum(model),
        "ensemble": models,
        "train_data": Loader(data, BATCH, shuffle=True),
        "val_data": Loader(data, BATCH),
        "training_step": squared_error,
        "validation_step": squared_error,
    }


def folds_of(samples: int, folds: int) -> list[list[int]]:
    """The consecutive parts of scikit-learn's `KFold`: the first ones have one sample more."""
    sizes = [samples // folds + (fold < samples % folds) for fold in range(folds)]
    return [list(range(sum(sizes[:fold]), sum(sizes[: fold + 1]))) for fold in range(folds)]


def by_hand(resources: Resources) -> None:
    data = resources["train_data"].dataset
    for fold, held_out in enumerate(folds_of(SAMPLES, FOLDS)):
        kept = [data[number] for number in range(SAMPLES) if number not in held_out]
        train_again(resources, Loader(kept, BATCH, shuffle=True, seed=0), EPOCHS, fold)
        resources["ensemble"][fold].load_state_dict(resources["model"].state_dict())


PROCEDURE = Procedure(
    name="kfold",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer", "ensemble"),
    bad={
        "a validation of more samples": (
            lambda it: it.but(val_data=Loader(numbers(SAMPLES + 1)[0], BATCH)),
            r"`val_data` has 14 samples, and `train_data` 13\n.*use the same data set for both",
        ),
    },
)
