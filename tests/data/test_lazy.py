"""Data that draws while it is iterated over, and training that draws in between: exact at every cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SubsetRandomSampler

from graphtrain import Trainer, fit
from graphtrain.state.random import seed_everything
from tests.data.cutting import AssertExact, run_over

COUNT = 14
DRAWN: dict[str, Callable[[int], int]] = {
    "torch": lambda bound: int(torch.randint(bound, ())),
    "python": lambda bound: random.randrange(bound),
    "numpy": lambda bound: int(numpy.random.randint(bound)),
    "numpy, normal": lambda bound: int(abs(numpy.random.randn()) * 1000) % bound,
}


def shuffled(items: Iterator[int], draw: Callable[[int], int]) -> Iterator[int]:
    """A shuffle buffer of five."""
    buffer: list[int] = []
    for item in items:
        buffer.append(item)
        if len(buffer) == 5:
            yield buffer.pop(draw(5))
    while buffer:
        yield buffer.pop(draw(len(buffer)))


class Buffered:
    """Batches of two from a shuffle buffer."""

    def __init__(self, drawn: str) -> None:
        self.drawn = drawn

    def __iter__(self) -> Iterator[torch.Tensor]:
        items = shuffled(iter(range(COUNT)), DRAWN[self.drawn])
        for item in items:
            yield torch.tensor([item, next(items)])


class SizedBuffered(Buffered):
    def __len__(self) -> int:
        return COUNT // 2


class BufferedSet(IterableDataset[int]):
    def __init__(self, drawn: str) -> None:
        self.drawn = drawn

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        items = range(COUNT) if info is None else range(info.id, COUNT, info.num_workers)
        yield from shuffled(iter(items), DRAWN[self.drawn])


class BufferedSampler(Sampler[int]):
    def __init__(self, drawn: str) -> None:
        self.drawn = drawn

    def __iter__(self) -> Iterator[int]:
        yield from shuffled(iter(range(COUNT)), DRAWN[self.drawn])

    def __len__(self) -> int:
        return COUNT


class BufferedBatches(BufferedSampler):
    def __iter__(self) -> Iterator[Any]:
        items = super().__iter__()
        yield from ([item, next(items)] for item in items)

    def __len__(self) -> int:
        return COUNT // 2


class Noisy:
    """Numbers from 0, each disturbed from every generator."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> float:
        return index + (random.random() + numpy.random.rand() + float(torch.rand(()))) / 10


def with_own_generator() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(2)
    return DataLoader(range(COUNT), 2, sampler=RandomSampler(range(COUNT), True, generator=generator))


@pytest.mark.second(6)
@pytest.mark.first(1)
@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("kind", [Buffered, SizedBuffered])
def test_a_shuffle_buffer(drawn: str, kind: Callable[[str], Any], tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(lambda: kind(drawn), tmp_path)


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("drawn", DRAWN)
def test_a_shuffle_buffer_in_validation(drawn: str, tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(lambda: {"train_data": Buffered("torch"), "val_data": SizedBuffered(drawn)}, tmp_path)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(("drawn", "workers"), [*((name, 0) for name in DRAWN), ("torch", 2)])
def test_an_iterable_data_set_in_a_data_loader(
    drawn: str, workers: int, tmp_path: Path, assert_exact: AssertExact
) -> None:
    assert_exact(lambda: DataLoader(BufferedSet(drawn), 2, num_workers=workers), tmp_path)


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize(("drawn", "workers"), [*((name, 0) for name in DRAWN), ("torch", 2)])
@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_a_sampler_that_draws_while_it_is_iterated_over(
    kind: str, drawn: str, workers: int, tmp_path: Path, assert_exact: AssertExact
) -> None:
    def made() -> DataLoader[Any]:
        if kind == "sampler":
            return DataLoader(Noisy(), 2, sampler=BufferedSampler(drawn), num_workers=workers)  # type: ignore[arg-type]
        return DataLoader(Noisy(), batch_sampler=BufferedBatches(drawn), num_workers=workers)  # type: ignore[arg-type]

    assert_exact(made, tmp_path)


@pytest.mark.full
def test_a_data_loader_whose_iterator_is_its_own(tmp_path: Path, assert_exact: AssertExact) -> None:
    class Wrapped(DataLoader[Any]):
        def __iter__(self) -> Any:
            yield from super().__iter__()

    assert_exact(lambda: Wrapped(Noisy(), 2, sampler=BufferedSampler("torch")), tmp_path)  # type: ignore[arg-type]


@pytest.mark.full
def test_two_loaders_that_share_a_generator(tmp_path: Path, assert_exact: AssertExact) -> None:
    def made() -> dict[str, Any]:
        generator = torch.Generator().manual_seed(2)

        def loader() -> DataLoader[Any]:
            return DataLoader(range(COUNT), 2, sampler=RandomSampler(range(COUNT), True, 40, generator))

        return {"train_data": loader(), "val_data": loader()}

    assert_exact(made, tmp_path)


@pytest.mark.full
def test_draws_that_nobody_else_comes_between_are_as_in_a_loop_by_hand(tmp_path: Path) -> None:
    """A generator that training does not draw from gives what it gives by hand, however bit by bit that is."""
    by_hand = with_own_generator()
    expected = [batch.tolist() for _ in range(2) for batch in by_hand]
    trainer, seen = run_over(with_own_generator(), tmp_path, edit=lambda graph: graph.set("validate", every="never"))
    trainer.run()
    assert [batch for batch, _ in seen] == expected


def test_augmentation_is_drawn_as_in_a_loop_by_hand_whatever_the_sampler() -> None:
    """A user-defined sampler is wrapped in a Stream, torch's is not; they draw the same numbers."""

    class AtOnce(BufferedSampler):
        def __iter__(self) -> Iterator[int]:
            yield from torch.randperm(COUNT).tolist()

    epochs = []
    for sampler in (AtOnce("torch"), SubsetRandomSampler(range(COUNT))):
        seed_everything(3)
        trainer, seen = run_over(DataLoader(Noisy(), 2, sampler=sampler), None)  # type: ignore[arg-type]
        trainer.run()
        epochs.append(seen)
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize("is_random", [False, True])
def test_it_is_reported_when_data_and_training_share_a_generator(is_random: bool) -> None:
    class Batches:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return (torch.rand(2, 1) for _ in range(3))

    said: list[str] = []
    model = torch.nn.Sequential(torch.nn.Dropout(0.5 if is_random else 0.0), torch.nn.Linear(1, 1))
    Trainer(
        fit(epochs=2), display=None, notify=said.append, seed=0, model=model, train_data=Batches(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1), training_step=lambda model, batch: model(batch).mean(),
    ).run()  # fmt: skip
    lines = [line for line in said if "a generator of its own" in line]
    assert len(lines) == is_random and all("the data, a Batches, draws random numbers" in line for line in lines)
