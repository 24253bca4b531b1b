"""Data with state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
)

from graphtrain import Loader
from tests.rows import batches, perceptron, row, rows, seeded, squared


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


def trained_on(data: Any, **resources: Any) -> dict[str, Any]:
    return seeded(perceptron, **{"train_data": data, **resources})


def loader(dataset: Any, **options: Any) -> Any:
    return DataLoader(dataset, batch_size=4, **options)


@row()
def sampler_whose_weights_training_changes() -> dict[str, Any]:
    sampler = Adaptive()

    def step(model: Any, batch: Any, batch_index: int) -> torch.Tensor:
        loss = model(batch).square().mean()
        sampler.weights[batch_index] += loss.item()
        return loss

    return trained_on(loader(Samples(), sampler=sampler), training_step=step)


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
def validation_with_a_counter() -> dict[str, Any]:
    seen = 0

    def validation_step(model: Any, batch: Any) -> Any:
        nonlocal seen
        seen += 1
        return {"loss": model(batch).square().mean() / seen}

    return trained_on(batches(), val_data=loader(Counted()), validation_step=validation_step)


@row()
def one_data_set_for_training_and_validation() -> dict[str, Any]:
    dataset = Counted()
    return trained_on(loader(dataset, shuffle=True), val_data=loader(dataset))


@row()
def generator_shared_with_the_step_function() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(2)

    def step(model: Any, batch: Any) -> torch.Tensor:
        return model(batch).square().mean() * (1 + torch.rand((), generator=generator))

    return trained_on(loader(Samples(), shuffle=True, generator=generator), training_step=step)


def _changed_in_place(model: Any, batch: Any) -> torch.Tensor:
    batch *= 0.9
    return model(batch).square().mean()


class _Views(Dataset[Any]):
    """Gives parts of what it keeps, no copies."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def __len__(self) -> int:
        return len(self.kept) // 4

    def __getitem__(self, index: int) -> Any:
        return self.kept[4 * index : 4 * index + 4]


@row(stateless="what is shared is within a batch, which is saved as one value")
def one_tensor_twice_in_a_batch() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        batch[0].mul_(0.5)
        return model(batch[1]).square().mean()

    return trained_on(loader(Samples(), collate_fn=lambda samples: [torch.stack(samples)] * 2), training_step=step)


class Lazily(Samples):
    """Makes its generator when the first sample is fetched, seeded by torch: in a worker, by that of the worker."""

    generator: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.generator is None:
            self.generator = numpy.random.default_rng(torch.initial_seed() % 2**32)
        return self.samples[index] + float(self.generator.normal())


@row(needs="position", requires="datasets")
def data_set_of_hugging_face() -> dict[str, Any]:
    import datasets

    data = datasets.Dataset.from_dict({"x": torch.cat(batches()).tolist()}).with_format("torch")
    return trained_on(loader(data, shuffle=True, collate_fn=lambda rows: torch.stack([row["x"] for row in rows])))


@row(needs="position", requires="datasets")
def stream_of_hugging_face() -> dict[str, Any]:
    import datasets

    data = datasets.Dataset.from_dict({"x": torch.cat(batches()).tolist()}).with_format("torch")
    stream = data.to_iterable_dataset().shuffle(seed=1, buffer_size=8)
    return trained_on(loader(stream, collate_fn=lambda rows: torch.stack([row["x"] for row in rows])))


def of_bytes(text: bytes) -> torch.Tensor:
    return torch.tensor(list(text)[::4], dtype=torch.float32) / 40 - 2


class InAFile(Dataset[torch.Tensor]):
    """28 samples of 12 bytes each: of this very file."""

    def __init__(self) -> None:
        self.file: Any = None

    def __len__(self) -> int:
        return 28

    def opened(self) -> Any:
        if self.file is None:
            self.file = open(__file__, "rb")  # noqa: SIM115 - open it stays
        return self.file

    def __getitem__(self, index: int) -> torch.Tensor:
        file = self.opened()
        file.seek(12 * index)
        return of_bytes(file.read(12))


class InTwoFiles(InAFile):
    """Keeps its handles in a dictionary, one of them a memory map."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, Any] = {}
        self.map: Any = None

    def opened(self) -> Any:
        if self.map is None:
            self.map = numpy.memmap(__file__, mode="r")
        if not self.files:
            self.files["only"] = open(__file__, "rb")  # noqa: SIM115 - open it stays
        return self.files["only"]

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + float(self.map[index]) / 100


class ReadOn(InAFile):
    """Reads where it is, whatever it is asked for."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return of_bytes(self.opened().read(12))


class OpenedAtOnce(ReadOn):
    def __init__(self) -> None:
        self.file = open(__file__, "rb")  # noqa: SIM115 - open it stays


GIVEN = 0


class CountedInAGlobal(Samples):
    def __getitem__(self, index: int) -> torch.Tensor:
        global GIVEN
        GIVEN += 1
        return self.samples[index] * (1 + GIVEN / 50)


class StartingOver:
    """An iterator over itself: `__iter__` begins an epoch."""

    def __init__(self) -> None:
        self.batches = batches()
        self.epochs = 0

    def __iter__(self) -> StartingOver:
        self.number = 0
        self.epochs += 1
        return self

    def __next__(self) -> torch.Tensor:
        if self.number == len(self.batches):
            raise StopIteration
        self.number += 1
        return self.batches[self.number - 1] / self.epochs


class Shuffling:
    """The same, in an order of its own, by a method, and with an iterator inside."""

    def __init__(self) -> None:
        self.batches = batches()
        self.generator = random.Random(3)

    def begin(self) -> None:
        order = list(range(len(self.batches)))
        self.generator.shuffle(order)
        self.order = iter(order)

    def __iter__(self) -> Shuffling:
        self.begin()
        return self

    def __next__(self) -> torch.Tensor:
        return self.batches[next(self.order)] * self.generator.random() + torch.rand(1)


class Once:
    """It does not start over."""

    def __init__(self) -> None:
        self.order = iter(batches())

    def __iter__(self) -> Once:
        return self

    def __next__(self) -> torch.Tensor:
        return next(self.order)


rows(
    needs="position",
    shuffled_loader=lambda: trained_on(loader(Samples(), shuffle=True)),
    own_loader_that_augments=lambda: trained_on(Loader(Augmented(), batch_size=4, shuffle=True)),
    samples_of_two_worker_processes=lambda: trained_on(loader(Augmented(), shuffle=True, num_workers=2)),
    lazy_generator_in_two_workers=lambda: trained_on(loader(Lazily(), shuffle=True, num_workers=2)),
    data_that_iterates_over_itself_in_an_order_of_its_own=lambda: seeded(perceptron, train_data=Shuffling()),
)
rows(
    shuffled_loader_with_a_generator=lambda: trained_on(
        loader(Samples(), shuffle=True, generator=torch.Generator().manual_seed(2))
    ),
)
rows(
    needs="random",
    stream=lambda: trained_on(loader(Endless())),
)
rows(
    stateless="the epoch is set again before its first batch is drawn",
    data_with_set_epoch=lambda: trained_on(loader(ByEpoch(), shuffle=True)),
)
rows(
    data_that_counts=lambda: trained_on(loader(Counted(), shuffle=True)),
    data_that_caches=lambda: trained_on(loader(Caching(), shuffle=True)),
    sampler_that_counts_epochs=lambda: trained_on(loader(Samples(), sampler=CountsEpochs())),
    views_of_a_kept_tensor=lambda: trained_on(
        DataLoader(_Views(torch.cat(batches())), batch_size=None), training_step=_changed_in_place
    ),
    lazy_generator=lambda: trained_on(loader(Lazily(), shuffle=True)),
    data_that_counts_in_a_global=lambda: trained_on(loader(CountedInAGlobal(), shuffle=True)),
    data_that_iterates_over_itself=lambda: seeded(perceptron, train_data=StartingOver()),
)
rows(
    "train_data.dataset.file cannot be saved: it is a _io.BufferedReader that may have changed",
    file_that_is_read_on=lambda: trained_on(loader(OpenedAtOnce())),
)
rows(
    "is a new BufferedReader",
    bound="each sample is read where it is",
    own_loader_over_files_in_a_dictionary=lambda: trained_on(Loader(InTwoFiles(), batch_size=4, shuffle=True)),
)
rows(
    "train_data.dataset.file cannot be saved: it is a new BufferedReader",
    own_loader_that_reads_on_in_a_late_file=lambda: trained_on(Loader(ReadOn(), batch_size=4)),
)
rows(
    "train_data differs: batch",
    own_loader_with_workers_over_data_that_counts_in_a_global=lambda: trained_on(
        Loader(CountedInAGlobal(), batch_size=4, shuffle=True, num_workers=1)
    ),
)


class Normalised(Samples):
    """Scales its samples by the statistics of a module, and draws; `is_bound` binds them again in every batch."""

    def __init__(self, *, is_bound: bool = False) -> None:
        super().__init__()
        self.norm, self.is_bound = torch.nn.BatchNorm1d(3), is_bound

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.samples[index] + torch.rand(())) * self.norm.running_var

    def step(self, model: Any, batch: torch.Tensor) -> torch.Tensor:
        self.norm(batch.detach())
        if self.is_bound:
            self.norm.running_var = self.norm.running_var * 0.9
        return squared(model, batch)


def normalised(**options: bool) -> dict[str, Any]:
    data = Normalised(**options)
    return seeded(perceptron, training_step=data.step, train_data=DataLoader(data, 4))


rows(needs=("reachable", "data"), module_of_data=normalised)
rows(
    "train_data.dataset.norm has other parameters or buffers",
    module_of_data_whose_buffer_is_bound_again=lambda: normalised(is_bound=True),
)
rows(
    "train_data.order cannot be saved: it is a builtins.list_iterator that may have changed",
    bound="a new process draws the epoch from a new iterator",
    data_that_iterates_over_itself_once=lambda: seeded(perceptron, train_data=Once()),
)
