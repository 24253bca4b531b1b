"""What ranks train on is what one process trains on: the same batches, in the same windows, whatever their number."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader, Trainer
from graphtrain.distributed import Ranks
from tests.distributed.fake_ranks import run_ranks

BATCHES, SIZE = 23, 4
SAMPLES = BATCHES * SIZE - 1

Made = Callable[[], Any]


class Drawing:
    """Batches from a shuffle buffer, with noise: drawn one by one from the global generators."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        buffer: list[int] = []
        for index in range(self.samples):
            buffer.append(index)
            if len(buffer) == 7:
                yield self._batch([buffer.pop(random.randrange(len(buffer))) for _ in range(SIZE)])
        while buffer:
            yield self._batch([buffer.pop() for _ in range(min(SIZE, len(buffer)))])

    def _batch(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor([[float(index), random.random(), torch.rand(()).item()] for index in indices])


class Stateful(Drawing):
    """The same with a position of its own; each epoch has other noise."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[torch.Tensor]:
        first, self.given = self.given % BATCHES, self.given % BATCHES
        for number in range(first, BATCHES):
            self.given += 1
            yield self._batch([*range(number * SIZE, min(number * SIZE + SIZE, SAMPLES))])

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class Augmented:
    """Samples whose noise is drawn when they are loaded."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), random.random(), torch.rand(()).item()])


LISTS = [[n] * 3 for n in range(40)]

DATA: dict[str, Made] = {
    "loader": lambda: Loader(Augmented(), batch_size=SIZE, shuffle=True),
    "loader_prefetched": lambda: Loader(Augmented(), batch_size=SIZE, shuffle=True),
    "batch_sampler": lambda: Loader(
        Augmented(), batch_sampler=[[n, n + 1] if n % 3 else [n] for n in range(0, 2 * BATCHES, 2)]
    ),
    "list": lambda: [torch.full((1 + n % 2, 3), float(n)) for n in range(BATCHES)],
    "dataloader": lambda: DataLoader(Augmented(), batch_size=SIZE, shuffle=True),  # type: ignore[arg-type]
    "own_generator": lambda: DataLoader(
        Augmented(),  # type: ignore[arg-type]
        batch_size=SIZE,
        shuffle=True,
        generator=torch.Generator().manual_seed(torch.seed() % 2**32),
    ),
    "iterable": Drawing,
    "stateful": Stateful,
}
ONE_ORDER = ("loader", "loader_prefetched", "batch_sampler", "list")  # which one process has, too


@dataclass
class Trained:
    """What a run has trained on.

    Attributes:
        seen: (epoch, number of the batch, the step that it is in, the batch), in order.
    """

    seen: list[tuple[int, int, int, Any]] = field(default_factory=list)
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights: list[float] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def train(
    data: Any,
    graph: Graph,
    *,
    until: str | None = None,
    progress: dict[str, Any] | None = None,
    **resources: Any,
) -> Trained:
    """Train on this rank, with as many random numbers drawn between batches as make it differ from others."""
    trained = Trained()

    def training_step(model: Any, batch: Any, epoch: int, batch_index: int, step: int) -> torch.Tensor:
        trained.seen.append((epoch, batch_index, step, batch.tolist()))
        random.random(), torch.rand(1 + len(trained.seen) % 3)
        loss: torch.Tensor = model(batch.double()).square().mean()
        return loss

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()
    trainer = Trainer(
        graph,
        display=None,
        notify=trained.lines.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-4),
        train_data=data,
        training_step=training_step,
        **resources,
    )
    trainer.run(until=until)
    trained.progress = {path: dict(fields) for path, fields in trainer.progress.items()}
    trained.weights = [value for part in model.parameters() for value in part.flatten().tolist()]
    trained.metrics = list(trainer.metrics)
    return trained


def fit(every: int = 1, epochs: int = 2, *, prefetch: bool = False, **settings: dict[str, Any]) -> Graph:
    graph = Graph.load("fit").set("accumulate", every=every).set("finish", after=f"{epochs} epochs")
    graph = graph.set("next_batch", prefetch=prefetch).set("checkpoint", every="never")
    for node, parameters in settings.items():
        graph = graph.set(node, **parameters)
    return graph


def all_seen(of_ranks: list[Trained]) -> list[tuple[int, int, int, Any]]:
    """What all ranks have trained on, in the order of the numbers of batches."""
    return sorted((each for trained in of_ranks for each in trained.seen), key=lambda seen: seen[:2])


def on_ranks(world_size: int, made: Made, graph: Graph, seed: int = 0, **resources: Any) -> list[Trained]:
    def program(ranks: Ranks) -> Trained:
        return train(made(), graph, **resources)

    return run_ranks(world_size, program, seed)


@pytest.mark.parametrize("name", DATA)
def test_every_batch_once_in_the_same_windows(name: str) -> None:
    expected: list[tuple[int, int, int, Any]] = []
    for world_size, every in [(1, 12), (2, 6), (3, 4), (4, 3)]:
        if world_size == 1 and name not in ONE_ORDER:
            continue
        of_ranks = on_ranks(world_size, DATA[name], fit(every, prefetch="prefetched" in name))
        seen = all_seen(of_ranks)
        assert [each[:2] for each in seen] == [(epoch, number) for epoch in (0, 1) for number in range(BATCHES)]
        assert [each[2] for each in seen] == [epoch * 2 + number // 12 for epoch in (0, 1) for number in range(BATCHES)]
        samples = sum(len(batch) for *_, batch in seen)
        for trained in of_ranks:
            assert trained.progress["next_batch"]["samples"] == samples
            assert trained.progress["next_batch"]["batches"] == 2 * BATCHES
            assert trained.weights == of_ranks[0].weights
        expected = expected or seen
        assert seen == expected, world_size
        first, second = ([batch for epoch, *_, batch in seen if epoch == number] for number in (0, 1))
        if name not in ("list", "batch_sampler"):
            assert first != second, "each epoch has its own random numbers"
