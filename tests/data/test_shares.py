"""Which batches of a `Loader` each of several ranks loads: the same rounds on all, whatever was planned ahead."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphtrain import Loader
from graphtrain.data.shares import Share, Window, Windows, planned_rounds, round_size
from graphtrain.data.source import Ordered

BATCHES, SIZE = 23, 3


class Counted(Windows):
    """A window that the test moves."""

    def __init__(self, size: int | None) -> None:
        super().__init__()
        self.size, self.count = size, 0

    def __call__(self) -> list[Window]:
        return [] if self.size is None else [Window(self.size - self.count, self.size)]


class Noisy:
    """Samples with random numbers, and how many were loaded."""

    def __init__(self, samples: int) -> None:
        self.samples, self.loaded = samples, 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        self.loaded += 1
        return torch.tensor([float(index), torch.rand(()).item(), random.random()])


def noisy_loader(**keywords: Any) -> Loader:
    return Loader(Noisy(BATCHES * SIZE - 1), batch_size=SIZE, shuffle=True, seed=4, **keywords)


def share_of(loader: Loader, rank: int, world_size: int, first: int, windows: Windows) -> Share:
    numbered = Ordered(loader, 0).numbered(1)
    return Share(numbered, numbered.length, rank, world_size, first, windows, loader)


def consumed(
    loaders: list[Loader], first: int, windows: Counted, steps_early: Iterator[bool]
) -> tuple[list[Any], list[int]]:
    """All batches from one on, in the order of their numbers, and the sizes of the windows that were stepped."""
    world_size = len(loaders)
    parts = [share_of(loader, rank, world_size, first, windows) for rank, loader in enumerate(loaders)]
    batches, stepped = [], []
    while first < BATCHES:
        size = round_size(first, BATCHES, world_size, windows())
        for rank, share in enumerate(parts):
            share.begin_round(first, size)
            if rank < size:
                batches.append(next(share).tolist())
        first += size
        windows.count += size
        if windows.size is not None and (windows.count >= windows.size or next(steps_early) or first == BATCHES):
            stepped.append(windows.count)
            windows.count = 0
    return batches, stepped


@pytest.mark.second(2)
@pytest.mark.first(3)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_batch_is_loaded_once_from_any_place(world_size: int) -> None:
    expected = [batch.tolist() for batch in noisy_loader().batches(1)]
    for size, first in itertools.product([None, 1, 4, 6, 100], [0, 5, 22]):
        loaders = [noisy_loader() for _ in range(world_size)]
        batches, stepped = consumed(loaders, first, Counted(size), itertools.repeat(False))
        assert batches == expected[first:]
        assert sum(loader.dataset.loaded for loader in loaders) == sum(map(len, batches)), "nothing in vain"
        if size is not None:
            rest = (BATCHES - first) % size
            assert stepped == [size] * ((BATCHES - first) // size) + [rest] * (rest > 0)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_window_that_is_stepped_early_loses_nothing(world_size: int) -> None:
    expected = [batch.tolist() for batch in noisy_loader().batches(1)]
    for seed in range(8):
        choose = random.Random(seed)
        loaders = [noisy_loader() for _ in range(world_size)]
        windows = Counted(choose.choice([3, 5, 8]))
        steps_early = iter(lambda choose=choose: choose.random() < 0.3, None)
        batches, _ = consumed(loaders, 0, windows, steps_early)
        assert batches == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_a_rank_loads_again_from_a_round_that_was_not_planned(workers: int) -> None:
    expected = [batch.tolist() for batch in noisy_loader().batches(1)]
    share = share_of(noisy_loader(num_workers=workers), 1, 2, 0, windows := Counted(4))
    first = 0
    for windows.count in [0, 2, 0, 2, 3, 0, 2, 0]:  # three in the second window, one in the fourth round
        size = round_size(first, BATCHES, 2, windows())
        share.begin_round(first, size)
        if size > 1:
            assert next(share).tolist() == expected[first + 1]
        first += size
        if first == 10:
            share.release()
    share.release()


@pytest.mark.parametrize(
    ("rounds", "windows"),
    [
        ([(0, 2), (2, 2), (4, 1)], []),
        ([(0, 2), (2, 1), (3, 2)], [Window(3, 3)]),
        ([(0, 1), (1, 2), (3, 1), (4, 1)], [Window(1, 3)]),
        ([(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)], [Window(2, 2), Window(1, 2)]),
        ([(0, 2), (2, 2), (4, 1)], [Window(0, 2)]),
    ],
)
def test_rounds_planned_for_two_ranks(rounds: list[tuple[int, int]], windows: list[Window]) -> None:
    assert list(planned_rounds(0, 5, 2, windows)) == rounds


@pytest.mark.parametrize(
    "keywords",
    [
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"batch_sampler": [[0, 1, 2], [3], [4, 5, 6, 7]]},
        {"batch_size": 2, "sampler": [5, 1, 3]},
    ],
    ids=str,
)
def test_samples_are_known_from_numbers(keywords: dict[str, Any]) -> None:
    loader = Loader(torch.arange(10), **keywords)
    counts = [batch.numel() for batch in loader.batches(0)]
    epoch = loader.epoch(0)
    assert epoch.length == len(counts)
    assert [epoch.samples(number) for number in range(epoch.length)] == counts
