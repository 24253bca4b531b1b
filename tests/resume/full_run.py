"""A small run with everything in it that a resume can get wrong.

Unique samples, shuffled; augmentation from torch, NumPy and Python; dropout and batch norm; windows of 4 batches, the
last of an epoch short; validation in the middle of epochs; AdamW with two groups, a parameter of no module, a
scheduler, clipping; a frozen layer that is thawed in the middle of the run, a batch norm that is fixed there; a buffer
that is no part of `state_dict` and that the loss depends on; means of metrics that windows and epochs are summed over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from graphtrain import Graph, Loader, Trainer
from graphtrain.state.random import seed_everything

SAMPLES = 14
BATCH_SIZE = 2
# The batch at which layers thaw: inside a window, inside an epoch.
THAWED_AFTER = 6


class Augmented(Dataset[Any]):
    """Distinct samples, disturbed at random each time they are read, from every generator there is."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, 6, generator=generator)
        self.targets = torch.randint(0, 3, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.randn(6) * (random.random() + float(numpy.random.rand()))
        return self.inputs[index] + noise, self.targets[index]


class Network(nn.Module):
    """Modes, buffers of both kinds, a frozen layer, tied weights and random numbers all matter to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.4)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.head = nn.Linear(8, 3)
        self.register_buffer("level", torch.ones(()), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("recent", None, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.frozen(inputs))))
        hidden = self.second(torch.relu(self.first(hidden)))
        if self.training:
            self.level = 0.9 * self.level + 0.1 * hidden.detach().abs().mean()
            self.recent = hidden.detach().mean(0)
            self.seen += 1
            if self.seen == THAWED_AFTER:
                self.frozen.requires_grad_(True)
                self.norm.eval()
        center = 0.0 if self.recent is None else 0.1 * self.recent
        return self.head((hidden - center) / self.level)


def losses_of(model: nn.Module, batch: Any, temperature: torch.Tensor) -> dict[str, torch.Tensor]:
    inputs, targets = batch
    logits = model(inputs) * temperature
    correct = (logits.argmax(1) == targets).float().mean()
    return {"loss": nn.functional.cross_entropy(logits, targets), "accuracy": correct}


class Unsized:
    """An iterable that does not know its length and draws its order from the global generator."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def order(self) -> Iterator[int]:
        yield from torch.randperm(SAMPLES).tolist()

    def __iter__(self) -> Iterator[Any]:
        batch = []
        for index in self.order():
            batch.append(self._data[index])
            if len(batch) == BATCH_SIZE:
                yield tuple(torch.stack(parts) for parts in zip(*batch, strict=True))
                batch = []


class ShuffleBuffer(Unsized):
    """The same with a small buffer, out of which each sample is drawn when it is needed."""

    def order(self) -> Iterator[int]:
        waiting: list[int] = []
        for index in range(SAMPLES):
            waiting.append(index)
            if len(waiting) == 5:
                yield waiting.pop(int(torch.randint(len(waiting), ())))
        while waiting:
            yield waiting.pop(random.randrange(len(waiting)))


class LazySampler(Sampler[int]):
    """Draws each index when it is asked for, from a global generator that training draws from too."""

    def __iter__(self) -> Iterator[int]:
        waiting = list(range(SAMPLES))
        while waiting:
            yield waiting.pop(int(torch.randint(len(waiting), ())))

    def __len__(self) -> int:
        return SAMPLES


class Stream(IterableDataset[Any]):
    """Samples one after the other, in an order drawn at the beginning; each worker has its share."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        own = range(SAMPLES) if worker is None else range(worker.id, SAMPLES, worker.num_workers)
        shuffled = [own[number] for number in torch.randperm(len(own)).tolist()]
        for index in shuffled:
            yield self._data[index]


class WithState:
    """Data that keeps its own position and its own random numbers, and gives one long round after the other."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data
        self._generator = random.Random(3)
        self._order: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        if not self._order:
            self._order = self._generator.sample(range(SAMPLES), SAMPLES)
        while self._order:
            chosen, self._order = self._order[:BATCH_SIZE], self._order[BATCH_SIZE:]
            batch = [self._data[index] for index in chosen]
            yield tuple(torch.stack(parts) for parts in zip(*batch, strict=True))

    def __len__(self) -> int:
        return SAMPLES // BATCH_SIZE

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self._order), "generator": self._generator.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order = list(state["order"])
        self._generator.setstate(state["generator"])


def _stateful(data: Dataset[Any], workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(data, BATCH_SIZE, shuffle=True, num_workers=workers)


KINDS: dict[str, Callable[[Dataset[Any], int], Any]] = {
    "Loader": lambda data, workers: Loader(data, BATCH_SIZE, shuffle=True, num_workers=workers),
    "DataLoader": lambda data, workers: DataLoader(data, BATCH_SIZE, shuffle=True, num_workers=workers),
    "own generator": lambda data, workers: DataLoader(
        data, BATCH_SIZE, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(5)
    ),
    "lazy sampler": lambda data, workers: DataLoader(data, BATCH_SIZE, sampler=LazySampler(), num_workers=workers),
    "stream": lambda data, workers: DataLoader(Stream(data), BATCH_SIZE, num_workers=workers),
    "StatefulDataLoader": _stateful,
    "list": lambda data, workers: list(DataLoader(data, BATCH_SIZE)),
    "unsized": lambda data, workers: Unsized(data),
    "shuffle buffer": lambda data, workers: ShuffleBuffer(data),
    "with state": lambda data, workers: WithState(data),
}


WITHOUT_LENGTH = ("stream", "unsized", "shuffle buffer")


def full_graph(ending: str = "2 epochs", kind: str = "Loader") -> Graph:
    part = "1 epochs" if kind in WITHOUT_LENGTH else "0.4 epochs"
    return (
        Graph.load("fit")
        .set("accumulate", every=4)
        .set("clip", max_norm=1.0)
        .set("validate", every=[part, "3 batches"])
        .set("log", every="1 steps")
        .set("checkpoint", every="3 batches", keep=10_000)
        .set("finish", after=ending)
    )


def full_trainer(
    run_dir: Path | str | None = None,
    *,
    kind: str = "Loader",
    workers: int = 0,
    losses: list[float] | None = None,
    notify: Callable[[str], None] = lambda line: None,
    graph: Graph | None = None,
) -> Trainer:
    """A trainer of the run; `losses` takes the loss of every batch, trained or validated."""
    torch.set_num_threads(1)
    seed_everything(7)
    model = Network()
    temperature = nn.Parameter(torch.tensor(1.5))
    body = [parameter for name, parameter in model.named_parameters() if not name.startswith("head")]
    optimizer = torch.optim.AdamW(
        [{"params": body}, {"params": [*model.head.parameters(), temperature], "weight_decay": 0.0}], lr=0.01
    )

    def recorded_step(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        result = losses_of(model, batch, temperature)
        if losses is not None:
            losses.append(result["loss"].item())
        return result

    data = Augmented()
    return Trainer(
        graph if graph is not None else full_graph(kind=kind),
        run_dir=run_dir,
        seed=11,
        device="cpu",
        notify=notify,
        display=None,
        not_state=["training_step<losses>"],
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9),
        train_data=KINDS[kind](data, workers),
        val_data=DataLoader(data, 5),
        training_step=recorded_step,
    )
