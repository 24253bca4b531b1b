"""Cross-validation: a new model for each fold, the metrics of what it holds out, and all models as an ensemble."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain import Graph, Loader
from tests.gallery.procedure import Change, Procedure, Resources

FOLDS, EPOCHS, SAMPLES, BATCH = 3, 2, 13, 3


def graph() -> Graph:
    small = Graph.load("kfold").set("begin_fold", folds=FOLDS).set("fit/finish", after=f"{EPOCHS} epochs")
    small = small.set("fit/accumulate", every=2).set("fit/log", every="2 steps")
    return small.set("fit/checkpoint", every="never")


def make_model() -> torch.nn.Module:
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    return torch.nn.Sequential(*layers).double()


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def renewed(model: torch.nn.Module) -> None:
    for module in reversed([*model.modules()]):
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def training_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def resources() -> Resources:
    torch.manual_seed(1)
    data = torch.randn(SAMPLES, 3, dtype=torch.float64)
    model = make_model()
    return {
        "model": model,
        "optimizer": make_optimizer(model),
        "ensemble": torch.nn.ModuleList(make_model() for _ in range(FOLDS)),
        "train_data": Loader(data, BATCH, shuffle=True),
        "val_data": Loader(data, BATCH),
        "training_step": training_step,
        "validation_step": training_step,
    }


def folds_of(samples: int, folds: int) -> list[list[int]]:
    """The consecutive parts of scikit-learn's `KFold`: the first ones have one sample more."""
    sizes = [samples // folds + (fold < samples % folds) for fold in range(folds)]
    return [list(range(sum(sizes[:fold]), sum(sizes[: fold + 1]))) for fold in range(folds)]


def by_hand(resources: Resources) -> None:
    data, model = resources["train_data"].dataset, resources["model"]
    for fold, held_out in enumerate(folds_of(SAMPLES, FOLDS)):
        renewed(model)
        optimizer = resources["optimizer"] = make_optimizer(model)
        kept = [data[number] for number in range(SAMPLES) if number not in held_out]
        loader = Loader(kept, BATCH, shuffle=True, seed=0)
        for epoch in range(EPOCHS):
            batches = list(loader.batches(fold * EPOCHS + epoch))  # the loader of the run goes on
            for number, batch in enumerate(batches, 1):
                (training_step(model, batch) / 2).backward()
                if number % 2 == 0 or number == len(batches):
                    optimizer.step()
                    optimizer.zero_grad()
        resources["ensemble"][fold].load_state_dict(model.state_dict())


def folds(count: int) -> Change:
    return lambda graph, resources: (
        graph.set("begin_fold", folds=count),
        {**resources, "ensemble": torch.nn.ModuleList(make_model() for _ in range(count))},
    )


def with_resource(name: str, make: Any) -> Change:
    return lambda graph, resources: (graph, {**resources, name: make()})


PROCEDURE = Procedure(
    name="kfold",
    graph=graph,
    resources=resources,
    by_hand=by_hand,
    compared=("model", "optimizer", "ensemble"),
    bad={
        "more folds than samples": (folds(SAMPLES + 1), r"begin_fold.folds = 14: there are 13 samples\n.*at most"),
        "a stream": (
            with_resource("train_data", lambda: iter([])),
            r"`train_data` is a list_iterator without a length\n.*pass a graphtrain.Loader",
        ),
        "a validation of more samples": (
            with_resource("val_data", lambda: Loader(torch.randn(SAMPLES + 1, 3, dtype=torch.float64), BATCH)),
            r"`val_data` has 14 samples, and `train_data` 13\n.*give both one data set",
        ),
        "an ensemble of two": (
            with_resource("ensemble", lambda: torch.nn.ModuleList([make_model(), make_model()])),
            r"`ensemble` has 2 modules, and begin_fold.folds = 3\n.*make as many",
        ),
    },
)
