"""Data of every kind that a user may train on, of small numbers; and a training that reads any of them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from graphtrain import Graph, Trainer
from tests.world import World, said_at_resume, small_fit, world

COUNT = 14
Made = Callable[[], Any]
DRAWN: dict[str, Callable[[int], int]] = {
    "torch": lambda bound: int(torch.randint(bound, ())),
    "python": lambda bound: random.randrange(bound),
    "numpy": lambda bound: int(numpy.random.randint(bound)),
    "numpy, normal": lambda bound: int(abs(numpy.random.randn()) * 1000) % bound,
}

# ---- a training


def parts_of(batch: Any) -> list[torch.Tensor]:
    """The numbers of a batch of any kind."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict | tuple | list):
        return [part for each in (batch.values() if isinstance(batch, dict) else batch) for part in parts_of(each)]
    return [] if batch is None else [torch.as_tensor(numpy.asarray(batch))]


def stepped(model: nn.Module, batch: Any) -> torch.Tensor:
    """A training step that draws from every generator, between two batches of the data."""
    noise = random.random() + numpy.random.rand() + numpy.random.randn()
    losses = [model(part.reshape(-1, 1).float()).square().mean() for part in parts_of(batch) if part.numel()]
    return torch.stack(losses).sum() * noise * 0.1


class Seen:
    """The same step, which notes the numbers of each batch that it trains on, and may do more with the batch."""

    _graphtrain_not_state = ("batches",)

    def __init__(self, act: Callable[[Any], Any] = lambda batch: batch) -> None:
        self.batches: list[list[float]] = []
        self._act = act

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.batches.append([number for part in parts_of(batch) for number in part.flatten().tolist()])
        return stepped(model, self._act(batch) if torch.is_grad_enabled() else batch)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))


@functools.cache
def _graph() -> Graph:
    return small_fit("unsized")


def reading(data: Made, edit: Callable[[Graph], Graph] = lambda graph: graph, **resources: Any) -> World:
    """A training on this data, or these resources, two epochs of it, which is validated in mid-epoch."""

    def made() -> dict[str, Any]:
        given = data()
        resources = given if isinstance(given, dict) else {"train_data": given}
        return {"val_data": [torch.ones(2)], **resources}

    return world(
        _graph(), edit=edit, model=small, optimizer="SGD", scheduler="none", data=made,
        training_step=resources.pop("training_step", stepped), **resources,
    )  # fmt: skip


def setting(node: str, **parameters: Any) -> Callable[[Graph], Graph]:
    return lambda graph: graph.set(node, **parameters)


def resumed(
    it: World, run_dir: Path, cut: str = "3 batches", later: World | None = None, until: str | None = None
) -> tuple[str, Trainer]:
    """What a run says that was ended, and was resumed as another one; and its trainer."""
    it.trainer(run_dir).run(until=cut)
    lines = list[str]()
    trainer = (later or it).trainer(run_dir, lines=lines)
    trainer.run(until=until)
    return said_at_resume(lines), trainer


def stateful(*arguments: Any, **options: Any) -> Any:
    """torchdata's loader."""
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(*arguments, **options)


def hugging_face(buffer_size: int | None = None) -> Any:
    """A table of the library `datasets`, or a stream of it with a shuffle buffer of this size."""
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": [float(number) for number in range(COUNT)]})
    if buffer_size is None:
        return table
    stream = table.to_iterable_dataset(num_shards=2)
    return stream.shuffle(seed=4, buffer_size=buffer_size) if buffer_size else stream


def stacked(rows: list[dict[str, float]]) -> torch.Tensor:
    return torch.tensor([row["x"] for row in rows])


def disturbed(rows: dict[str, list[float]]) -> dict[str, list[float]]:
    return {"x": [value + random.random() + float(torch.rand(())) for value in rows["x"]]}


# ---- data sets


class Samples(Dataset[Any]):
    """Numbers from 0."""

    def __init__(self) -> None:
        self.samples = torch.arange(COUNT, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.samples[index].clone()


class Noisy(Samples):
    """Disturbed from every generator."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + (random.random() + numpy.random.rand() + float(torch.rand(()))) / 10


def noisy_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """Also of random length."""
    shift = random.random() + numpy.random.randn() + float(torch.randn(()))
    return torch.stack([*samples, *[torch.tensor(0.0)] * random.randrange(3)]) + shift


class Counting(Samples):
    """Later samples are larger."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.given += 1
        return super().__getitem__(index) + self.given / 10


class Caching(Samples):
    """What is drawn for a sample once stays."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = super().__getitem__(index) + torch.rand(())
        return self.cache[index]


class Growing(Samples):
    """Every epoch has four samples more than the one before."""

    def set_epoch(self, epoch: int) -> None:
        self.samples = torch.arange(COUNT + 4 * epoch, dtype=torch.float32)


class Remembering(Samples):
    """Changes a tensor where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(3)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.last[index % 3] += 0.1
        return super().__getitem__(index) + self.last.sum()


class Deep(Samples):
    """A generator that no attribute of the data set holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = {"noise": [torch.Generator().manual_seed(3)]}

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand((), generator=self.parts["noise"][0])


class LazilySeeded(Samples):
    """Makes its generator when it is first needed, from whatever the system gives."""

    def __init__(self) -> None:
        super().__init__()
        self.generator: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.generator is None:
            self.generator = numpy.random.default_rng()
        return super().__getitem__(index) + float(self.generator.random())


class Augmentation:
    """Lazily too, and out of sight of the data set."""

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "generator"):
            self.generator = random.Random()
        return sample + self.generator.random()


class Transformed(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.steps = [Augmentation(), Augmentation()]

    def __getitem__(self, index: int) -> torch.Tensor:
        return functools.reduce(lambda sample, step: step(sample), self.steps, super().__getitem__(index))


class Shifted(Samples):
    """More than what a fingerprint looks at: a setting that nothing looks into."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.shift = lambda: shift

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + self.shift()


# ---- samplers


def from_a_buffer(items: Iterator[int], draw: Callable[[int], int]) -> Iterator[int]:
    """A shuffle buffer of five."""
    buffer: list[int] = []
    for item in items:
        buffer.append(item)
        if len(buffer) == 5:
            yield buffer.pop(draw(5))
    while buffer:
        yield buffer.pop(draw(len(buffer)))


class BufferedSampler(Sampler[Any]):
    """Draws each number when it is asked for, from a generator that training draws from too."""

    def __init__(self, drawn: str = "torch") -> None:
        self.drawn = drawn

    def __iter__(self) -> Iterator[Any]:
        return from_a_buffer(iter(range(COUNT)), DRAWN[self.drawn])

    def __len__(self) -> int:
        return COUNT


class InPairs(Sampler[Any]):
    """Batches of two."""

    def __init__(self, inner: Sampler[Any]) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.inner)
        yield from ([item, next(items)] for item in items)


class SizedInPairs(InPairs):
    def __len__(self) -> int:
        return COUNT // 2


class CountingSampler(Sampler[Any]):
    """Another order each time it is begun, by whichever loader."""

    def __init__(self) -> None:
        self.epochs = 0

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        yield from torch.randperm(COUNT, generator=torch.Generator().manual_seed(self.epochs)).tolist()


class Adaptive(CountingSampler):
    """Draws by weights that it changes where they are, every time that it is asked."""

    def __init__(self) -> None:
        self.weights = torch.ones(COUNT)

    def __iter__(self) -> Iterator[Any]:
        for index in torch.multinomial(self.weights, COUNT, replacement=True).tolist():
            self.weights[index] += 1
            yield index


class Unseeded(CountingSampler):
    """Another order in every process."""

    def __iter__(self) -> Iterator[Any]:
        yield from numpy.random.default_rng().permutation(COUNT).tolist()


# ---- streams


class Buffered:
    """Batches of two from a shuffle buffer, of unknown length."""

    def __init__(self, drawn: str = "torch") -> None:
        self.drawn = drawn

    def __iter__(self) -> Iterator[torch.Tensor]:
        items = from_a_buffer(iter(range(COUNT)), DRAWN[self.drawn])
        for item in items:
            yield torch.tensor([item, next(items)])


class SizedBuffered(Buffered):
    def __len__(self) -> int:
        return COUNT // 2


class BufferedSet(IterableDataset[int]):
    """The same as a data set, of which each worker has a share."""

    def __init__(self, drawn: str = "torch") -> None:
        self.drawn = drawn

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        items = range(COUNT) if info is None else range(info.id, COUNT, info.num_workers)
        yield from from_a_buffer(iter(items), DRAWN[self.drawn])


class Pair(NamedTuple):
    inputs: torch.Tensor
    index: int


class Own:
    """A batch of a class of the user's, as tokenizers return it: it has no plain form."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.inputs.numpy()


class OfKind(IterableDataset[Any]):
    """Batches of such a class, of unknown length, so that one is fetched ahead."""

    def __init__(self, kind: Callable[[torch.Tensor], Any]) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        for number in range(5):
            noise = random.random() + numpy.random.randn()
            yield self.kind(torch.tensor([number + noise, float(torch.rand(()))]))


class Learning(IterableDataset[torch.Tensor]):
    """Learns from epoch to epoch, and within one."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.offset = sum(self.seen[-2:])
        for number in range(COUNT):
            self.seen.append(random.random() + number)
            yield torch.tensor([self.seen[-1] + self.offset])


class Filling:
    """Batches from a buffer that fills while they are drawn."""

    def __init__(self) -> None:
        self.held: list[torch.Tensor] = [torch.ones(2)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(5):
            self.held.append(self.held[-1] * 0.5 + torch.rand(2))
            yield torch.stack(self.held[-2:]).flatten()


class Longer:
    """Every epoch has one batch more than the last."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(3 + self.epoch):
            yield torch.tensor([float(number), float(torch.rand(())), self.epoch])


class Told(IterableDataset[float]):
    """Gives another number of samples than its length."""

    def __init__(self, reported: int, given: int) -> None:
        self.reported, self.given = reported, given

    def __iter__(self) -> Iterator[float]:
        for number in range(self.given):
            yield number + float(torch.rand(()))

    def __len__(self) -> int:
        return self.reported


class Zipped:
    """Loaders of which the user makes one."""

    def __init__(self, *loaders: Any) -> None:
        self.loaders = loaders

    def __iter__(self) -> Iterator[Any]:
        return zip(*self.loaders, strict=False)


# ---- data that keeps its position


class Carried:
    """Its position is reset at the end of an epoch; it draws from every generator, bit by bit."""

    length = 6

    def __init__(self) -> None:
        self.position = self.epochs = self.opened = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.opened += 1
        while self.position < self.length:
            self.position += 1
            noise = random.random() + numpy.random.randn() + float(torch.rand(()))
            yield torch.tensor([float(self.position), noise, self.epochs])
        self.position = 0
        self.epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.epochs = state["position"], state["epochs"]


class SizedCarried(Carried):
    def __len__(self) -> int:
        return self.length


class Flagged(Carried):
    """Its position stays at the end; `load_state_dict` sets the first batch of the next epoch only."""

    first = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        first, self.first = self.first, 0
        for position in range(first, self.length):
            self.position = position + 1
            yield torch.tensor([float(position), random.random() + float(torch.rand(()))])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = self.position = state["position"]


class Eager(Carried):
    """An order drawn by `iter` itself and kept in the state; a new epoch counts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []
        self.is_resumed = False

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not self.is_resumed:
            self.order = torch.randperm(self.length).tolist()
            self.position = 0
            self.epochs += 1
        self.is_resumed = False
        return self._rest()

    def _rest(self) -> Iterator[torch.Tensor]:
        while self.position < self.length:
            self.position += 1
            yield torch.tensor([float(self.order[self.position - 1]), self.epochs])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "order": torch.tensor(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.order, self.is_resumed = state["order"].tolist(), True


class CountedSet(IterableDataset[float]):
    """An iterable data set with a state."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[float]:
        while self.position < 12:
            self.position += 1
            yield self.position + random.random() + float(torch.rand(())) + numpy.random.randn()
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Incomplete(CountedSet):
    """Its state leaves out the buffer in which it shuffles."""

    def __iter__(self) -> Iterator[Any]:
        drawn, buffer = random.Random(4), list[int]()
        while self.position < 12 or buffer:
            while self.position < 12 and len(buffer) < 4:
                buffer.append(self.position)
                self.position += 1
            yield torch.tensor([float(buffer.pop(drawn.randrange(len(buffer))))])
        self.position = 0


class SizedIncomplete(Incomplete):
    def __len__(self) -> int:
        return 12


class IncompleteEpochs(CountedSet):
    """Its state leaves out which epoch it is."""

    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += not self.position
        order = random.Random(self.epoch).sample(range(12), 12)
        while self.position < 12:
            self.position += 1
            yield torch.tensor([float(order[self.position - 1])])
        self.position = 0


class Starting(Incomplete):
    """Starts over, unless a state was loaded."""

    loaded = 0

    def __iter__(self) -> Iterator[Any]:
        self.position, self.loaded = self.loaded, 0
        return super().__iter__()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["position"]


class Wrapped:
    """Data without the state that it has itself."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)


class Forgetful(Carried):
    """Its `iter` starts over, and its state is incomplete."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (torch.tensor([float(number)]) for number in torch.randperm(self.length).tolist())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("not to be asked")


class Ahead(Carried):
    """Fetches ahead, and changes the state that it is given."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        iterator = super().__iter__()
        following = next(iterator, None)
        while following is not None:
            yield following
            following = next(iterator, None)

    def state_dict(self) -> dict[str, Any]:
        return {"position": max(self.position - 1, 0), "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        state["position"] = "spoilt"


class Unready(Carried):
    """Has no state before its first epoch; torchdata's loader would begin one to report it."""

    def state_dict(self) -> dict[str, Any]:
        assert self.opened
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.opened = 1


class Unended(Carried):
    """Its state does not tell whether the epoch is at its end: loaded there, the next epoch begins at once."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.length):
            self.position += 1
            yield torch.tensor([float(self.position)])


def once() -> Iterator[torch.Tensor]:
    """Can be iterated over only once."""
    return iter([torch.tensor([float(number)]) for number in range(20)])
