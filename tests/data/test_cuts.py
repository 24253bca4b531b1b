"""Every kind of data, cut at some batch, and in a sweep at all of them: exact."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SubsetRandomSampler
from torch.utils.data import WeightedRandomSampler as Weighted

from graphtrain import Graph, Loader
from graphtrain.storage.checkpoint import read_checkpoint
from tests.data.cutting import AssertExact, checkpoints, run_over
from tests.data.test_lazy import BufferedBatches, BufferedSampler, Noisy

COUNT = 14


def noisy_collate(samples: list[float]) -> torch.Tensor:
    """Also of random length."""
    shift = random.random() + numpy.random.randn() + float(torch.randn(()))
    return torch.tensor(samples + [0.0] * random.randrange(3)) + shift


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"batch_size": 3},
    "shuffled": lambda: {"batch_size": 3, "shuffle": True},
    "drop_last": lambda: {"batch_size": 3, "shuffle": True, "drop_last": True},
    "random collation": lambda: {"batch_size": 3, "shuffle": True, "collate_fn": noisy_collate},
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "subset": lambda: {"batch_size": 2, "sampler": SubsetRandomSampler(range(9))},
    "weighted": lambda: {"batch_size": 2, "sampler": Weighted([1.0] * COUNT, 12)},
    "replacing": lambda: {"batch_size": 2, "sampler": RandomSampler(range(COUNT), True, 20)},
    "several times over": lambda: {
        "batch_size": 4,
        "sampler": RandomSampler(range(COUNT), num_samples=40, generator=torch.Generator().manual_seed(1)),
    },
    "sampler": lambda: {"batch_size": 2, "sampler": BufferedSampler("python")},
    "batch_sampler": lambda: {"batch_sampler": BufferedBatches("numpy")},
    "torch's batch_sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(COUNT)), 3, False)},
}


# In a sweep both kinds with all options.
@pytest.mark.second(5)
@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(
            kind, options, id=f"{kind.__name__}-{name}", marks=[] if (row + column) % 2 == 0 else pytest.mark.sweep
        )
        for row, (name, options) in enumerate(OPTIONS.items())
        for column, kind in enumerate((Loader, DataLoader))
    ],
)
def test_loaders(kind: Any, options: Callable[[], dict[str, Any]], tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(lambda: kind(Noisy(), **options()), tmp_path)


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("name", ["random collation", "drop_last"])
def test_a_data_loader_with_workers(name: str, tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(lambda: DataLoader(Noisy(), num_workers=2, **OPTIONS[name]()), tmp_path)


def test_a_data_loader_with_its_own_generator(tmp_path: Path, assert_exact: AssertExact) -> None:
    def made() -> DataLoader[Any]:
        return DataLoader(Noisy(), 3, shuffle=True, generator=torch.Generator().manual_seed(3))

    assert_exact(made, tmp_path)


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
@pytest.mark.parametrize(("workers", "resumed"), [(0, 2), (2, 4), (4, 0)])
def test_a_loader_whose_number_of_workers_changes(
    workers: int, resumed: int, tmp_path: Path, assert_exact: AssertExact
) -> None:
    def made(workers: int) -> Loader:
        return Loader(Noisy(), 3, shuffle=True, collate_fn=noisy_collate, num_workers=workers)

    assert_exact(lambda: made(workers), tmp_path, resumed=lambda: made(resumed))


def test_lists(tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(lambda: [torch.full((2,), float(number)) for number in range(5)], tmp_path)


# Batches that cannot be encoded


class Pair(NamedTuple):
    inputs: torch.Tensor
    index: int


class Own:
    """A batch of a user-defined class, as tokenizers return it."""

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.inputs.numpy()


class Unsized:
    """No length, so that a batch is fetched ahead; everything in it is drawn bit by bit."""

    def __init__(self, kind: Callable[[torch.Tensor], Any]) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        for number in range(5):
            noise = random.random() + numpy.random.randn()
            yield self.kind(torch.tensor([number + noise, float(torch.rand(()))]))


class UnsizedSet(IterableDataset[Any]):
    def __init__(self, kind: Callable[[torch.Tensor], Any]) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        yield from Unsized(self.kind)


def pair(inputs: torch.Tensor) -> Pair:
    return Pair(inputs, 0)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    "made",
    [
        lambda: Unsized(Own),
        lambda: DataLoader(UnsizedSet(Own), None),
        lambda: DataLoader(UnsizedSet(Own), None, num_workers=2),
        lambda: Unsized(pair),
    ],
    ids=["iterable", "IterableDataset", "IterableDataset, 2 workers", "named tuple"],
)
def test_a_batch_ahead_that_has_no_plain_form_is_drawn_again(
    made: Callable[[], Any], tmp_path: Path, assert_exact: AssertExact
) -> None:
    assert_exact(made, tmp_path)


@pytest.mark.full
def test_a_plain_batch_ahead_is_in_the_checkpoint(tmp_path: Path) -> None:
    trainer, seen = run_over(Unsized(lambda inputs: inputs), tmp_path)
    trainer.run()
    tree = read_checkpoint(checkpoints(tmp_path)[1]).sections
    (ahead,) = tree["progress"]["next_batch"]["state"]["ahead"].tensors.values()
    assert ahead.tolist() == seen[2][0]


# Lengths


class Growing:
    """Every epoch has one batch more than the last; an epoch before the first would be empty."""

    def __init__(self, sized: bool = True) -> None:
        self.epoch = 0
        if sized:
            self.__class__ = SizedGrowing

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(3 + self.epoch):
            yield torch.tensor([float(number), float(torch.rand(())), self.epoch])


class SizedGrowing(Growing):
    def __len__(self) -> int:
        return 3 + self.epoch


class GrowingSet(Noisy):
    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 7 + 4 * self.epoch


class GrowingSampler(BufferedSampler):
    def __init__(self) -> None:
        super().__init__("torch")
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(COUNT).tolist()[: len(self)]

    def __len__(self) -> int:
        return 7 + 3 * self.epoch


@pytest.mark.full
@pytest.mark.parametrize(
    "made",
    [
        lambda: Growing(sized=False),
        Growing,
        lambda: Loader(GrowingSet(), 2, shuffle=True),
        lambda: Loader(Noisy(), 2, sampler=GrowingSampler()),
        lambda: DataLoader(Noisy(), 2, sampler=GrowingSampler()),
    ],
    ids=["unsized", "sized", "Loader", "Loader with a sampler", "DataLoader with a sampler"],
)
def test_a_length_that_changes_between_epochs(
    made: Callable[[], Any], tmp_path: Path, assert_exact: AssertExact
) -> None:
    assert_exact(made, tmp_path, epochs=3)


class Told(IterableDataset[float]):
    """It yields another number of samples than its length."""

    def __init__(self, reported: int, given: int) -> None:
        self.reported, self.given = reported, given

    def __iter__(self) -> Iterator[float]:
        for number in range(self.given):
            yield number + float(torch.rand(()))

    def __len__(self) -> int:
        return self.reported


@pytest.mark.first(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_fewer_batches_than_its_length(workers: int, tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(lambda: DataLoader(Told(20, 15), 2, num_workers=workers), tmp_path)


@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
def test_more_batches_than_its_length(tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(lambda: DataLoader(Told(5, 15), 2), tmp_path)


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize(
    "empty",
    [
        lambda: [],
        lambda: Loader([], 2),
        lambda: Loader([], 2, shuffle=True),
        lambda: Loader(range(3), 4, drop_last=True),
        lambda: DataLoader([], 2),
        lambda: DataLoader(Told(0, 0), 2),
        lambda: DataLoader(Told(0, 0), 2, num_workers=2),
    ],
    ids=range(7),
)
def test_empty_data_for_validation(empty: Callable[[], Any], tmp_path: Path, assert_exact: AssertExact) -> None:
    def made() -> dict[str, Any]:
        return {"train_data": Loader(Noisy(), 2, shuffle=True), "val_data": empty()}

    assert_exact(made, tmp_path)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "made",
    [
        lambda: Loader(Noisy(), 2, shuffle=True),
        lambda: DataLoader(Noisy(), 2, shuffle=True),
        lambda: DataLoader(Noisy(), 2, sampler=BufferedSampler("torch")),
        lambda: Growing(sized=False),
    ],
    ids=["Loader", "DataLoader", "DataLoader with a sampler", "unsized"],
)
def test_a_limit(made: Callable[[], Any], tmp_path: Path, assert_exact: AssertExact) -> None:
    def edit(graph: Graph) -> Graph:
        return graph.set("next_batch", limit=4)

    assert_exact(made, tmp_path, edit=edit)
