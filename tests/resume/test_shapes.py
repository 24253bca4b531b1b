"""What an object is follows from what reads it, not from its methods: every shape, read in every way, cut (10)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from graphtrain import Graph, Loader, Trainer, node
from tests.world import said_at_resume

BATCHES = [torch.randn(4, 3, generator=torch.Generator().manual_seed(number)) for number in range(4)]


class Bag:
    """Remembers what the training step tells it."""

    def __init__(self) -> None:
        self.values = [0.5]

    def note(self, value: float) -> None:
        self.values.append(value)

    def total(self) -> float:
        return sum(self.values)


class Kept:
    """Has a state, in which there is no position."""

    values: list[float]

    def state_dict(self) -> dict[str, Any]:
        return {"held": {"values": [*self.values]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = [*state["held"]["values"]]


class Iterable(Bag):
    def __iter__(self) -> Iterator[Any]:
        yield from BATCHES


class Indexable(Bag):
    def __len__(self) -> int:
        return len(BATCHES)

    def __getitem__(self, index: int) -> torch.Tensor:
        return BATCHES[index]


class Callable(Bag):
    def __call__(self) -> float:
        return self.total()


class IterableKept(Kept, Iterable):
    pass


class Replay(Iterable):
    """Draws from what it remembers."""

    def __iter__(self) -> Iterator[Any]:
        for _ in BATCHES:
            yield torch.full((4, 3), random.choice(self.values))


class ReplayKept(Kept, Replay):
    pass


class Positioned(Kept, Iterable):
    """Has its position in its state: after it is loaded, it goes on from there."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0

    def __iter__(self) -> Iterator[Any]:
        while self.drawn < len(BATCHES):
            self.drawn += 1
            yield BATCHES[self.drawn - 1]
        self.drawn = 0

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]
        super().load_state_dict(state)


class Tensors(Iterable):
    """Holds a tensor that is written in place, which is the very one of its state."""

    def __init__(self) -> None:
        self.sum, self.values = torch.zeros(50), [0.0]

    def note(self, value: float) -> None:
        self.sum += value

    def total(self) -> float:
        return float(self.sum.mean())

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self.sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sum.copy_(state["sum"])


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(()))
        self.calls = 0

    def note(self, value: float) -> None:
        self.sum += value
        self.calls += 1

    def total(self) -> float:
        return float(self.sum) + self.calls / 100

    def __iter__(self) -> Iterator[Any]:
        return iter(BATCHES)


DRAWN = [Iterable, Indexable, Replay, Module, Positioned, IterableKept, ReplayKept, Tensors]
SHAPES = [Bag, Callable, *DRAWN]


@node
def telling(memory: Any, batch: Any) -> None:
    """Tell the memory about the batch."""
    memory.note(float(batch.mean()))


class Task:
    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        return step(model, batch, self.memory)


def step(model: Any, batch: Any, memory: Any) -> torch.Tensor:
    memory.note(float(batch.mean()))
    return model(batch).square().mean() * (1 + 0.1 * abs(memory.total()))


def step_with_memory_data(model: Any, batch: Any, memory_data: Any) -> torch.Tensor:
    return step(model, batch, memory_data)


def trainer_of(way: str, memory: Any, run_dir: Path, lines: list[str]) -> Trainer:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    graph = Graph.load("fit").set("finish", after="3 epochs").set("checkpoint", every="never")
    model = torch.nn.Linear(3, 1)
    ways: dict[str, dict[str, Any]] = {
        "by the step function": {"training_step": step, "memory": memory},
        "by a node": {"training_step": lambda model, batch: step(model, batch, memory), "memory": memory},
        "as an attribute": {"training_step": Task(memory)},
        "in a list": {"training_step": lambda model, batch, held: step(model, batch, held[0]), "held": [memory]},
        "under a name of data": {"training_step": step_with_memory_data, "memory_data": memory},
        "as data": {"training_step": lambda model, batch: step(model, batch, memory), "train_data": memory},
        "as data, and by the step function": {"memory": memory, "training_step": step, "train_data": memory},
        "as data of another name": {"training_step": step, "memory": memory, "train_data": None},
        "as data of a validation": {"training_step": Task(memory), "val_data": memory, "validation_step": squared},
        "as a part of data": {"training_step": Task(memory)},
    }
    if way == "by a node":
        graph = graph.insert("telling", telling, after="train_batch")
    elif way == "as data of another name":
        graph = graph.set("next_batch", reads={"train_data": "memory"})
    elif way == "as a part of data":
        ways[way]["train_data"] = Loader(memory, batch_size=None)
    resources = {"train_data": BATCHES, **ways[way]}
    given = {name: value for name, value in resources.items() if value is not None}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"seed": 0, "run_dir": run_dir, "display": None, "notify": lines.append}
    return Trainer(graph, **options, model=model, optimizer=optimizer, **given)


def squared(model: Any, batch: Any) -> torch.Tensor:
    return model(batch).square().mean()


OBJECTS = ["by the step function", "by a node", "as an attribute", "in a list", "under a name of data"]
DATA = ["as data", "as data, and by the step function", "as data of another name", "as data of a validation"]
TABLE = [
    *((way, shape) for shape in reversed(SHAPES) for way in OBJECTS),
    *((way, shape) for shape in reversed(DRAWN) for way in DATA),
    ("as a part of data", Indexable),
]
TABLE.sort(key=lambda row: row[1] not in (ReplayKept, Positioned, IterableKept))


@pytest.mark.second(12)
@pytest.mark.first(5)
@pytest.mark.parametrize(("way", "shape"), TABLE, ids=lambda value: getattr(value, "__name__", value))
def test_a_resume_goes_on_as_the_run_that_was_not_cut(way: str, shape: type, tmp_path: Path) -> None:
    whole = trainer_of(way, shape(), tmp_path / "whole", [])
    whole.run()
    for cut in (3, 7):
        trainer_of(way, shape(), tmp_path / f"{cut}", []).run(until=f"{cut} batches")
        lines = list[str]()
        resumed = trainer_of(way, shape(), tmp_path / f"{cut}", lines)
        resumed.run()
        assert said_at_resume(lines).endswith(": exact")
        assert torch.equal(resumed.resources["model"].weight, whole.resources["model"].weight)
        assert resumed.digest() == whole.digest()


@pytest.mark.full
def test_a_tensor_beyond_the_bound_is_reported_and_all_others_are_saved(tmp_path: Path) -> None:
    def trainer(lines: list[str]) -> tuple[Trainer, Any]:
        wide = torch.ones(1).expand(70_000_000)  # 280 MB, if it were saved
        held = SimpleNamespace(large=[wide], wide=wide, small=torch.zeros(2), array=numpy.zeros(2))

        def training_step(model: Any, batch: Any) -> torch.Tensor:
            held.small += 1
            held.array += 1
            held.new = held.small + 1
            return squared(model, batch)

        made = trainer_of("as an attribute", Bag(), tmp_path, lines)
        resources = {**made.resources, "training_step": training_step}
        return Trainer(made.graph, run_dir=tmp_path, display=None, notify=lines.append, **resources), held

    trainer([])[0].run(until="3 batches")
    lines = list[str]()
    resumed, held = trainer(lines)
    resumed.advance(0)
    assert said_at_resume(lines).count("more than 256 MiB would be saved without a `state_dict`") == 1
    assert held.small.tolist() == held.array.tolist() == [3, 3] and held.new.tolist() == [4, 4]
