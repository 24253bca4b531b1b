"""Data that changes what it holds: an epoch is drawn again from what it held when the epoch was opened."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset

from graphtrain import Loader
from graphtrain.state.random import RandomAside, global_generators
from tests.data.cutting import AssertExact, checkpoints, run_over

COUNT = 14


class Samples(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.samples = torch.arange(COUNT, dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.samples[index].clone()


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
    """Every epoch has two samples more."""

    def set_epoch(self, epoch: int) -> None:
        self.samples = torch.arange(COUNT + 2 * epoch, dtype=torch.float32)


class Remembering(Samples):
    """Changes a tensor where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(3)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.last[index % 3] += 0.1
        return super().__getitem__(index) + self.last.sum()


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
        sample = super().__getitem__(index)
        for step in self.steps:
            sample = step(sample)
        return sample


class Deep(Samples):
    """A generator that no attribute of the data set holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = {"noise": [torch.Generator().manual_seed(3)]}

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand((), generator=self.parts["noise"][0])


class CountingSampler(Sampler[int]):
    """Takes its order from the number of epochs that it has counted."""

    def __init__(self) -> None:
        self.epochs = 0

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        yield from torch.randperm(COUNT, generator=torch.Generator().manual_seed(self.epochs)).tolist()


class CountingBatches(CountingSampler):
    def __iter__(self) -> Iterator[Any]:
        order = list(super().__iter__())
        yield from (order[first : first + 2] for first in range(0, COUNT, 2))

    def __len__(self) -> int:
        return COUNT // 2


class Adaptive(Sampler[int]):
    """Draws by weights that it changes where they are, every time that it is asked."""

    def __init__(self) -> None:
        self.weights = torch.ones(COUNT)

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        for index in torch.multinomial(self.weights, COUNT, replacement=True).tolist():
            self.weights[index] += 1
            yield index


class Stream(IterableDataset[torch.Tensor]):
    """Learns from epoch to epoch, and within one."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.offset = sum(self.seen[-2:])
        for number in range(COUNT):
            self.seen.append(random.random() + number)
            yield torch.tensor([self.seen[-1] + self.offset])


class Buffer:
    """Batches from a buffer that fills while they are drawn."""

    def __init__(self) -> None:
        self.held: list[torch.Tensor] = [torch.ones(2)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(5):
            self.held.append(self.held[-1] * 0.5 + torch.rand(2))
            yield torch.stack(self.held[-2:]).flatten()


Made = Callable[[], Any]
DATA: dict[str, Made] = {
    "counting, Loader": lambda: Loader(Counting(), 2, shuffle=True),
    "counting, DataLoader": lambda: DataLoader(Counting(), 2, shuffle=True),
    "counting in a Subset": lambda: Loader(Subset(Counting(), range(12)), 2, shuffle=True),
    "two that count": lambda: DataLoader(ConcatDataset([Counting(), Counting()]), 4, shuffle=True),
    "caching, Loader": lambda: Loader(Caching(), 2, shuffle=True),
    "caching, DataLoader": lambda: DataLoader(Caching(), 2, shuffle=True),
    "growing, Loader": lambda: Loader(Growing(), 2, shuffle=True),
    "growing, DataLoader": lambda: DataLoader(Growing(), 2),
    "remembering, Loader": lambda: Loader(Remembering(), 2, shuffle=True),
    "remembering, DataLoader": lambda: DataLoader(Remembering(), 2, shuffle=True),
    "a generator deep inside, Loader": lambda: Loader(Deep(), 2, shuffle=True),
    "a generator deep inside, DataLoader": lambda: DataLoader(Deep(), 2, shuffle=True),
    "a sampler that counts, Loader": lambda: Loader(Samples(), 2, sampler=CountingSampler()),
    "a sampler that counts, DataLoader": lambda: DataLoader(Samples(), 2, sampler=CountingSampler()),
    "a batch sampler that counts": lambda: DataLoader(Samples(), batch_sampler=CountingBatches()),  # type: ignore[arg-type]
    "a sampler that adapts, Loader": lambda: Loader(Samples(), 2, sampler=Adaptive()),
    "a sampler that adapts, DataLoader": lambda: DataLoader(Samples(), 2, sampler=Adaptive()),
    "a stream that learns": lambda: DataLoader(Stream(), 2),
    "a buffer": Buffer,
    "a buffer for validation": lambda: {"train_data": Buffer(), "val_data": Loader(Counting(), 4)},
}
WITH_WORKERS: dict[str, Made] = {
    "counting, DataLoader": lambda: DataLoader(Counting(), 2, shuffle=True, num_workers=2),
    "a generator deep inside, Loader": lambda: Loader(Deep(), 2, shuffle=True, num_workers=2),
    "a sampler that counts, Loader": lambda: Loader(Samples(), 2, sampler=CountingSampler(), num_workers=2),
    "a sampler that adapts, Loader": lambda: Loader(Samples(), 2, sampler=Adaptive(), num_workers=2),
    "caching, Loader": lambda: Loader(Caching(), 2, shuffle=True, num_workers=2),
}
# Two runs of these differ, so each is compared with itself.
LAZY: dict[str, Made] = {
    "Loader": lambda: Loader(LazilySeeded(), 2, shuffle=True),
    "Loader, 2 workers": lambda: Loader(LazilySeeded(), 2, shuffle=True, num_workers=2),
    "Loader, a transform's": lambda: Loader(Transformed(), 2, shuffle=True),
    "Loader, a transform's, 2 workers": lambda: Loader(Transformed(), 2, shuffle=True, num_workers=2),
}


# Every kind of change once; the others in a sweep.
OFTEN = [name for name in DATA if "DataLoader" in name or "a buffer" in name or "stream" in name]


@pytest.mark.second(2)
@pytest.mark.first(2)
@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.sweep) for name in DATA]
)
def test_cuts(name: str, tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(DATA[name], tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("made", WITH_WORKERS.values(), ids=WITH_WORKERS)
def test_cuts_with_workers(made: Made, tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(made, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    "made", [LAZY["Loader"], *(pytest.param(LAZY[name], marks=pytest.mark.sweep) for name in [*LAZY][1:])], ids=LAZY
)
def test_a_generator_that_is_made_in_a_fetch_is_seeded(made: Made, tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(made, tmp_path)


@pytest.mark.full
def test_a_generator_of_a_data_loader_that_is_made_in_a_fetch_is_continued(tmp_path: Path) -> None:
    """No two runs are alike; a resumed run uses the generator that it had."""
    whole, seen = run_over(DataLoader(LazilySeeded(), 2, shuffle=True), tmp_path)
    whole.run()
    for path in checkpoints(tmp_path)[::4]:
        cut, after = run_over(DataLoader(LazilySeeded(), 2, shuffle=True), None)
        cut.run(resume=path)
        assert after == seen[len(seen) - len(after) :]


IN_PIECES = {
    "a sampler that adapts, Loader": WITH_WORKERS["a sampler that adapts, Loader"],
    "a sampler that counts, DataLoader": lambda: DataLoader(Samples(), 2, sampler=CountingSampler(), num_workers=1),
    "a lazy generator": lambda: Loader(LazilySeeded(), 2, shuffle=True, num_workers=1),
}


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("made", IN_PIECES.values(), ids=IN_PIECES)
def test_a_run_in_pieces_is_the_run_in_one(made: Made) -> None:
    """Workers end between two pieces, so the epoch is opened again in the process that holds what came of it."""
    whole, seen = run_over(made(), None)
    whole.run()
    pieces, seen_in_pieces = run_over(made(), None)
    for until in ("3 batches", "9 batches"):
        pieces.run(until=until)
    pieces.run()
    assert seen_in_pieces == seen
    assert pieces.digest() == whole.digest()


def test_a_node_that_is_replaced_in_mid_epoch_leaves_data_as_it_is(tmp_path: Path) -> None:
    whole, seen = run_over(DataLoader(Counting(), 2, shuffle=True), None)
    whole.run()
    data = DataLoader(Counting(), 2, shuffle=True)
    rewired, after = run_over(data, None)
    rewired.run(until="4 batches")
    given = data.dataset.given  # type: ignore[attr-defined]
    rewired.rewire(rewired.graph.set("next_batch", limit=1000))
    assert data.dataset.given == given  # type: ignore[attr-defined]
    rewired.run()
    assert after == seen


@pytest.mark.full
def test_what_has_no_plain_form_stays_in_a_process_that_goes_on() -> None:
    """An open file, say: the very object, not what a description of it would give."""

    class Opening(CountingSampler):
        def __iter__(self) -> Iterator[int]:
            self.file = self.__dict__.get("file") or object()
            yield from super().__iter__()

    sampler = Opening()
    trainer, _ = run_over(Loader(Samples(), 2, sampler=sampler, num_workers=2), None)
    trainer.run(until="2 batches")
    opened = sampler.file
    trainer.run(until="3 batches")
    assert sampler.file is opened


def test_generators_of_devices_are_put_aside_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.Generator().manual_seed(5)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", (device,))
    expected = torch.rand(2, generator=device)
    device.manual_seed(5)
    with RandomAside(global_generators()):
        torch.rand(3, generator=device)
        torch.rand(3)
    assert torch.equal(torch.rand(2, generator=device), expected)
