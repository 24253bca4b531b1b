"""Cross-validation of a small network on scikit-learn's breast cancer data, with an ensemble of the models.

    graphtrain run graphs/gallery/kfold/kfold_example.py
    graphtrain run graphs/gallery/kfold/kfold_example.py begin_fold.folds=10 folds=10 --overlay ema

A quarter of the 569 samples is the test set. The rest is divided into five folds: each of five networks is trained on
four of them and validated on the fifth. After the last fold, `out_of_fold/accuracy` covers all training samples, each
classified by the network that was not trained on it. Finally the `ensemble` of the five networks is tested.

METRIC is the accuracy of the ensemble on the test set. BASELINE is the frequency of the more common class; the ensemble
reaches 0.98, well above LEVEL.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import TensorDataset

from graphtrain import Graph, Loader

METRIC = "test/accuracy"
BASELINE = 0.63
LEVEL = 0.95

graph = (
    Graph.load("kfold")
    .set("fit/finish", after="10 epochs")
    .insert("test", graph="test", before="end", reads={"model": "ensemble"})
)


class Ensemble(nn.ModuleList):
    """The models of all folds; it returns the mean of their logits."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([model(inputs) for model in self]).mean(0)


def make_model() -> nn.Module:
    """A network, with other weights each time."""
    return nn.Sequential(nn.BatchNorm1d(30), nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))


def training_step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The loss and the accuracy of a batch."""
    inputs, labels = batch
    logits = model(inputs)
    return {
        "loss": nn.functional.cross_entropy(logits, labels),
        "accuracy": (logits.argmax(1) == labels).float().mean(),
    }


def setup(folds: int = 5, batch_size: int = 32) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        folds: how many models the ensemble has, as `begin_fold.folds`.
        batch_size: samples per batch.
    """
    torch.set_num_threads(1)  # a network this small is slower with two
    features, classes = load_breast_cancer(return_X_y=True)
    inputs, labels = torch.tensor(features, dtype=torch.float32), torch.tensor(classes)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train, test = (TensorDataset(inputs[part], labels[part]) for part in (order[:427], order[427:]))
    model = make_model()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=3e-3),
        "ensemble": Ensemble(make_model() for _ in range(folds)),
        "train_data": Loader(train, batch_size, shuffle=True, drop_last=True),
        "val_data": Loader(train, batch_size=200),
        "test_data": Loader(test, batch_size=200),
        "training_step": training_step,
    }
