"""Data with state of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from graphtrain import Loader
from tests.state.setups.models import perceptron
from tests.state.setups.rows import batches, row, seeded


class Samples(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.samples = torch.cat(batches())

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.samples[index]


class Counted(Samples):
    """Later samples are larger: the data counts what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.given += 1
        return self.samples[index] * (1 + self.given / 50)


class Caching(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = self.samples[index] + torch.randn(3)
        return self.cache[index]


class Augmented(Samples):
    def __init__(self) -> None:
        super().__init__()
        self.generator = numpy.random.default_rng(8)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.samples[index] + float(self.generator.normal()) + random.random() + torch.randn(3)


class ByEpoch(Samples):
    """Has a curriculum: an epoch counter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.samples[index] * (1 + self.epoch)


class CountsEpochs(Sampler[int]):
    """Counts the epochs itself, as samplers without `set_epoch` do."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 28

    def __iter__(self) -> Iterator[int]:
        order = list(range(28))
        random.Random(self.epoch).shuffle(order)
        self.epoch += 1
        return iter(order)


class Adaptive(Sampler[int]):
    """Draws by weights that training changes."""

    def __init__(self) -> None:
        self.weights = torch.ones(28)

    def __len__(self) -> int:
        return 28

    def __iter__(self) -> Iterator[int]:
        yield from torch.multinomial(self.weights, 28, replacement=True).tolist()


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for sample in Samples().samples:
            yield sample + random.random()


class GrowingList:
    """An iterable of batches that learns from what was drawn."""

    def __init__(self) -> None:
        self.batches = batches(4)

    def __iter__(self) -> Iterator[torch.Tensor]:
        drawn = list(self.batches)
        if len(self.batches) < 8:
            self.batches.append(drawn[-1] * 1.1)
        yield from drawn


def trained_on(data: Any, **resources: Any) -> dict[str, Any]:
    return seeded(perceptron, **{"train_data": data, **resources})


def loader(dataset: Any, **options: Any) -> Any:
    return DataLoader(dataset, batch_size=4, **options)


@row()
def list_of_batches() -> dict[str, Any]:
    return trained_on(batches())


@row()
def shuffled_loader() -> dict[str, Any]:
    return trained_on(loader(Samples(), shuffle=True))


@row()
def shuffled_loader_with_a_generator() -> dict[str, Any]:
    return trained_on(loader(Samples(), shuffle=True, generator=torch.Generator().manual_seed(2)))


@row()
def own_loader_that_augments() -> dict[str, Any]:
    return trained_on(Loader(Augmented(), batch_size=4, shuffle=True))


@row()
def loader_that_augments() -> dict[str, Any]:
    return trained_on(loader(Augmented(), shuffle=True))


@row()
def data_that_counts() -> dict[str, Any]:
    return trained_on(loader(Counted(), shuffle=True))


@row()
def own_loader_over_data_that_counts() -> dict[str, Any]:
    return trained_on(Loader(Counted(), batch_size=4, shuffle=True))


@row()
def data_that_caches() -> dict[str, Any]:
    return trained_on(loader(Caching(), shuffle=True))


@row()
def own_loader_over_data_that_caches() -> dict[str, Any]:
    return trained_on(Loader(Caching(), batch_size=4, shuffle=True))


@row()
def data_with_set_epoch() -> dict[str, Any]:
    return trained_on(loader(ByEpoch(), shuffle=True))


@row()
def sampler_that_counts_epochs() -> dict[str, Any]:
    return trained_on(loader(Samples(), sampler=CountsEpochs()))


@row()
def own_loader_with_a_sampler_that_counts_epochs() -> dict[str, Any]:
    return trained_on(Loader(Samples(), batch_size=4, sampler=CountsEpochs()))


@row()
def sampler_whose_weights_training_changes() -> dict[str, Any]:
    sampler = Adaptive()

    def step(model: Any, batch: Any, batch_index: int) -> torch.Tensor:
        loss = model(batch).square().mean()
        sampler.weights[batch_index] += loss.item()
        return loss

    return trained_on(loader(Samples(), sampler=sampler), training_step=step)


@row()
def stream() -> dict[str, Any]:
    return trained_on(loader(Endless()))


@row()
def iterable_that_grows() -> dict[str, Any]:
    return trained_on(GrowingList())


@row()
def batches_changed_in_place() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        batch.mul_(0.9)
        return model(batch).square().mean()

    return trained_on(batches(), training_step=step)


@row()
def transform_with_state() -> dict[str, Any]:
    class Jitter:
        def __init__(self) -> None:
            self.strength = 1.0
            self.generator = torch.Generator().manual_seed(6)

        def __call__(self, sample: torch.Tensor) -> torch.Tensor:
            self.strength *= 0.99
            return sample + self.strength * torch.randn(3, generator=self.generator)

    class Transformed(Samples):
        def __init__(self) -> None:
            super().__init__()
            self.steps = {"transform": [Jitter()]}

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.steps["transform"][0](self.samples[index])

    return trained_on(loader(Transformed(), shuffle=True))


@row()
def collate_function_with_a_counter() -> dict[str, Any]:
    calls = 0

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.stack(samples) / calls

    return trained_on(loader(Samples(), shuffle=True, collate_fn=collate))


@row()
def validation_with_a_counter() -> dict[str, Any]:
    seen = 0

    def validation_step(model: Any, batch: Any) -> Any:
        nonlocal seen
        seen += 1
        return {"loss": model(batch).square().mean() / seen}

    return trained_on(batches(), val_data=loader(Counted()), validation_step=validation_step)


@row()
def samples_in_worker_processes() -> dict[str, Any]:
    return trained_on(Loader(Samples(), batch_size=4, shuffle=True, num_workers=0))
