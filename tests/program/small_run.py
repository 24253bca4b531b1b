"""A small run with everything random in it, for tests that compare one way of getting through it with another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from graphtrain import Graph, Loader, Trainer
from graphtrain.state.random import seed_everything

SAMPLES = 14
BATCH_SIZE = 3


class Augmented(Dataset[Any]):
    """Distinct samples, disturbed at random each time they are read."""

    def __init__(self, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(samples, 6, generator=generator)
        self.targets = torch.randint(0, 3, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index] + 0.1 * torch.randn(6), self.targets[index]


def make_model() -> nn.Module:
    """Dropout and batch norm: random numbers, buffers and modes all matter."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))


def training_step(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets)


def make_loader(kind: str, data: Dataset[Any], workers: int = 0) -> Any:
    if kind == "Loader":
        return Loader(data, BATCH_SIZE, shuffle=True, num_workers=workers)
    if kind == "DataLoader":
        return DataLoader(data, BATCH_SIZE, shuffle=True, num_workers=workers)
    if kind == "own generator":
        return DataLoader(
            data, BATCH_SIZE, shuffle=True, generator=torch.Generator().manual_seed(5), num_workers=workers
        )
    if kind == "list":
        return list(DataLoader(data, BATCH_SIZE))
    if kind == "unsized":
        return Unsized(data)
    if kind == "unsized, drawn at once":
        return UnsizedAtOnce(data)
    raise ValueError(kind)


class Unsized:
    """An iterable that does not know its length and draws its order from the global generator."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __iter__(self) -> Any:
        order = torch.randperm(SAMPLES).tolist()
        for start in range(0, SAMPLES, BATCH_SIZE):
            samples = [self._data[index] for index in order[start : start + BATCH_SIZE]]
            yield torch.stack([one for one, _ in samples]), torch.stack([two for _, two in samples])


class UnsizedAtOnce(Unsized):
    """The same, with all random draws of an epoch before its first batch, so that looking ahead moves none of them."""

    def __iter__(self) -> Any:
        yield from list(super().__iter__())


def make_optimizer(kind: str, model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer, and a scheduler or None."""
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)


def small_graph(every: int = 2, max_norm: float = 1.0, ending: str = "2 epochs", loader: str = "Loader") -> Graph:
    return (
        Graph.load("fit")
        .set("accumulate", every=every)
        .set("clip", max_norm=max_norm)
        .set("validate", every="1 epochs" if loader.startswith("unsized") else "0.5 epochs")
        .set("log", every="1 steps")
        .set("checkpoint", every="3 batches", keep=10_000)
        .set("finish", after=ending)
    )


def small_trainer(
    run_dir: Path | str | None = None,
    *,
    loader: str = "Loader",
    optimizer: str = "adamw",
    graph: Graph | None = None,
    losses: list[float] | None = None,
    workers: int = 0,
) -> Trainer:
    """A trainer of the small run; `losses` takes the loss of every batch, trained or validated."""
    torch.set_num_threads(1)
    seed_everything(7)
    model = make_model()
    made, scheduler = make_optimizer(optimizer, model)

    def recorded_step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = training_step(model, batch)
        if losses is not None:
            losses.append(loss.item())
        return loss

    data = Augmented()
    return Trainer(
        graph if graph is not None else small_graph(loader=loader),
        run_dir=run_dir,
        seed=11,
        notify=lambda line: None,
        not_state=["training_step<losses>"],
        model=model,
        optimizer=made,
        scheduler=scheduler,
        train_data=make_loader(loader, data, workers),
        val_data=DataLoader(data, 4),
        training_step=recorded_step,
    )
