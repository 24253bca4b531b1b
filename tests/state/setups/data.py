"""Data with state of its own."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

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


@row(needs="position")
def list_of_batches() -> dict[str, Any]:
    return trained_on(batches())


@row(needs="position")
def shuffled_loader() -> dict[str, Any]:
    return trained_on(loader(Samples(), shuffle=True))


@row(needs="random")
def shuffled_loader_with_a_generator() -> dict[str, Any]:
    return trained_on(loader(Samples(), shuffle=True, generator=torch.Generator().manual_seed(2)))


@row(needs="position")
def own_loader_that_augments() -> dict[str, Any]:
    return trained_on(Loader(Augmented(), batch_size=4, shuffle=True))


@row(needs="random")
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


@row(needs="random")
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


@row(needs="random")
def weighted_sampler_with_a_generator() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    sampler = WeightedRandomSampler([1.0 + index % 3 for index in range(28)], 28, generator=generator)
    return trained_on(loader(Samples(), sampler=sampler))


@row()
def batch_sampler_of_the_users_own() -> dict[str, Any]:
    class Buckets(Sampler[list[int]]):
        def __init__(self) -> None:
            self.rounds = 0

        def __len__(self) -> int:
            return 7

        def __iter__(self) -> Iterator[list[int]]:
            self.rounds += 1
            order = list(range(28))
            random.shuffle(order)
            for number in range(7):
                yield sorted(order[number * 4 : number * 4 + 4])[:: 1 if self.rounds % 2 else -1]

    return trained_on(DataLoader(Samples(), batch_sampler=Buckets()))


@row()
def collate_object_with_state() -> dict[str, Any]:
    class Collate:
        def __init__(self) -> None:
            self.generator = random.Random(2)
            self.longest = 0.0

        def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
            batch = torch.stack(samples)
            self.longest = max(self.longest, float(batch.norm()))
            return batch / self.longest + self.generator.random()

    return trained_on(loader(Samples(), shuffle=True, collate_fn=Collate()))


@row()
def data_that_grows() -> dict[str, Any]:
    class Growing(Samples):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 5 and len(self.samples) < 40:
                self.samples = torch.cat([self.samples, self.samples[:4] * 1.5])
            return self.samples[index]

    return trained_on(loader(Growing()))


@row()
def curriculum_that_training_sets() -> dict[str, Any]:
    class Curriculum(Samples):
        difficulty = 0.0

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.samples[index] * (1 + self.difficulty)

    dataset = Curriculum()

    def step(model: Any, batch: Any) -> torch.Tensor:
        dataset.difficulty += 0.1
        return model(batch).square().mean()

    return trained_on(loader(dataset, shuffle=True), training_step=step)


@row()
def one_data_set_for_training_and_validation() -> dict[str, Any]:
    dataset = Counted()
    return trained_on(loader(dataset, shuffle=True), val_data=loader(dataset))


@row(needs="random")
def generator_shared_with_the_step_function() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(2)

    def step(model: Any, batch: Any) -> torch.Tensor:
        return model(batch).square().mean() * (1 + torch.rand((), generator=generator))

    return trained_on(loader(Samples(), shuffle=True, generator=generator), training_step=step)


@row()
def subset_of_joined_data_that_counts() -> dict[str, Any]:
    joined = ConcatDataset([Counted(), Counted()])
    return trained_on(loader(Subset(joined, list(range(0, 56, 2))), shuffle=True))


@row()
def batches_as_dictionaries() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        batch["weight"] *= 0.9
        batch["seen"] = batch.get("seen", 0) + 1
        return model(batch["x"]).square().mean() * batch["weight"].mean() / batch["seen"]

    data = [{"x": batch, "weight": torch.ones(4)} for batch in batches()]
    return trained_on(data, training_step=step)


@row()
def new_dictionaries_of_kept_tensors() -> dict[str, Any]:
    class Kept(Dataset[Any]):
        def __init__(self) -> None:
            self.kept = [torch.cat((batch, torch.ones(len(batch), 1)), 1) for batch in batches()]

        def __len__(self) -> int:
            return len(self.kept)

        def __getitem__(self, index: int) -> Any:
            return {"x": self.kept[index]}

    def step(model: Any, batch: Any) -> torch.Tensor:
        batch["x"] *= 0.9
        return model(batch["x"][:, :-1]).square().mean() * batch["x"][:, -1].mean()

    return trained_on(DataLoader(Kept(), batch_size=None), training_step=step)


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


@row()
def views_of_a_kept_tensor() -> dict[str, Any]:
    return trained_on(DataLoader(_Views(torch.cat(batches())), batch_size=None), training_step=_changed_in_place)


@row()
def views_of_a_kept_array() -> dict[str, Any]:
    kept = torch.cat(batches()).numpy().copy()
    return trained_on(DataLoader(_Views(kept), batch_size=None), training_step=_changed_in_place)


@row()
def arrays_that_are_views_of_a_kept_array() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        batch *= 0.9
        return model(torch.from_numpy(batch.copy())).square().mean()

    views = _Views(torch.cat(batches()).numpy().copy())
    return trained_on(DataLoader(views, batch_size=None, collate_fn=lambda part: part), training_step=step)


@row()
def new_batches_that_are_kept() -> dict[str, Any]:
    class Kept(_Views):
        def __init__(self, kept: Any) -> None:
            super().__init__(kept)
            self.last = torch.zeros(4, 3)

        def __getitem__(self, index: int) -> Any:
            self.last = super().__getitem__(index) + self.last
            return self.last

    return trained_on(DataLoader(Kept(torch.cat(batches())), batch_size=None), training_step=_changed_in_place)


@row(stateless="what is shared is within a batch, which is saved as one value")
def one_tensor_twice_in_a_batch() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        batch[0].mul_(0.5)
        return model(batch[1]).square().mean()

    return trained_on(loader(Samples(), collate_fn=lambda samples: [torch.stack(samples)] * 2), training_step=step)


@row()
def arrays_that_are_scaled_in_place() -> dict[str, Any]:
    class Arrays(Samples):
        def __init__(self) -> None:
            self.samples = torch.cat(batches()).numpy().copy()

        def __getitem__(self, index: int) -> Any:
            self.samples[index] *= 0.95
            return torch.from_numpy(self.samples[index].copy())

    return trained_on(loader(Arrays(), shuffle=True))


@row(needs="position")
def memory_map_that_is_read() -> dict[str, Any]:
    with tempfile.NamedTemporaryFile() as file:
        array = numpy.memmap(file.name, dtype="float32", mode="w+", shape=(28, 3))
        array[:] = torch.cat(batches()).numpy()
        return trained_on(loader(TensorDataset(torch.from_numpy(numpy.asarray(array))), collate_fn=first_of))


def first_of(samples: list[tuple[torch.Tensor]]) -> torch.Tensor:
    """A batch of data whose samples are tuples of one tensor."""
    return torch.stack([sample for (sample,) in samples])


@row()
def stream_with_a_buffer() -> dict[str, Any]:
    class Shuffled(IterableDataset[torch.Tensor]):
        def __init__(self) -> None:
            self.buffer: list[torch.Tensor] = []

        def __iter__(self) -> Iterator[torch.Tensor]:
            for sample in Samples().samples:
                self.buffer.append(sample)
                if len(self.buffer) > 5:
                    yield self.buffer.pop(random.randrange(5))

    return trained_on(loader(Shuffled()))


@row(needs="position")
def data_that_keeps_its_own_position() -> dict[str, Any]:
    """A class that keeps its own position, and is covered by it."""

    class Positioned:
        def __init__(self) -> None:
            self.batches, self.next = batches(), 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            while self.next < len(self.batches):
                self.next += 1
                yield self.batches[self.next - 1]
            self.next = 0

        def state_dict(self) -> dict[str, Any]:
            return {"next": self.next}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.next = state["next"]

    return trained_on(Positioned())


@row(needs="position")
def samples_of_two_worker_processes() -> dict[str, Any]:
    return trained_on(loader(Augmented(), shuffle=True, num_workers=2))


@row(needs="position")
def samples_of_two_workers_of_the_own_loader() -> dict[str, Any]:
    return trained_on(Loader(Augmented(), batch_size=4, shuffle=True, num_workers=2))


class Lazily(Samples):
    """Makes its generator when the first sample is fetched, seeded by torch: in a worker, by that of the worker."""

    generator: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.generator is None:
            self.generator = numpy.random.default_rng(torch.initial_seed() % 2**32)
        return self.samples[index] + float(self.generator.normal())


@row()
def lazy_generator() -> dict[str, Any]:
    return trained_on(loader(Lazily(), shuffle=True))


@row(needs="position")
def lazy_generator_in_two_workers() -> dict[str, Any]:
    return trained_on(loader(Lazily(), shuffle=True, num_workers=2))


@row(needs="position")
def lazy_generator_of_the_own_loader() -> dict[str, Any]:
    return trained_on(Loader(Lazily(), batch_size=4, shuffle=True))


@row(needs="position", requires="torchdata")
def stateful_data_loader() -> dict[str, Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return trained_on(StatefulDataLoader(Samples(), batch_size=4, shuffle=True))


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


@row(needs="position")
def data_whose_state_holds_a_generator() -> dict[str, Any]:
    class Drawn:
        def __init__(self) -> None:
            self.generator, self.given = numpy.random.default_rng(9), 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            while self.given < 7:
                self.given += 1
                yield torch.from_numpy(self.generator.normal(size=(4, 3))).float()
            self.given = 0

        def state_dict(self) -> dict[str, Any]:
            return {"generator": self.generator, "given": self.given}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.generator, self.given = state["generator"], state["given"]

    return trained_on(Drawn())


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


@row(needs="position")
def file_that_is_opened_late() -> dict[str, Any]:
    return trained_on(loader(InAFile(), shuffle=True))


@row(needs="position")
def own_loader_over_a_file_that_is_opened_late() -> dict[str, Any]:
    return trained_on(Loader(InAFile(), batch_size=4, shuffle=True))


@row(needs="position")
def own_loader_with_workers_over_a_file_that_is_opened_late() -> dict[str, Any]:
    return trained_on(Loader(InAFile(), batch_size=4, shuffle=True, num_workers=2))


@row(needs="position")
def own_loader_over_files_in_a_dictionary() -> dict[str, Any]:
    return trained_on(Loader(InTwoFiles(), batch_size=4, shuffle=True))


@row("train_data.dataset.file is an open file, whose position is not saved")
def file_that_is_read_on() -> dict[str, Any]:
    return trained_on(loader(OpenedAtOnce()))


@row("train_data.dataset.file is an open file, whose position is not saved")
def own_loader_over_a_file_that_is_read_on() -> dict[str, Any]:
    return trained_on(Loader(OpenedAtOnce(), batch_size=4))


@row("train_data.dataset.file is a new BufferedReader, which cannot be saved")
def own_loader_that_reads_on_in_a_late_file() -> dict[str, Any]:
    return trained_on(Loader(ReadOn(), batch_size=4))


@row(needs="position")
def lazy_generator_in_two_workers_of_the_own_loader() -> dict[str, Any]:
    return trained_on(Loader(Lazily(), batch_size=4, shuffle=True, num_workers=2))


GIVEN = 0


class CountedInAGlobal(Samples):
    def __getitem__(self, index: int) -> torch.Tensor:
        global GIVEN
        GIVEN += 1
        return self.samples[index] * (1 + GIVEN / 50)


@row()
def data_that_counts_in_a_global() -> dict[str, Any]:
    return trained_on(loader(CountedInAGlobal(), shuffle=True))


@row()
def own_loader_over_data_that_counts_in_a_global() -> dict[str, Any]:
    return trained_on(Loader(CountedInAGlobal(), batch_size=4, shuffle=True))


@row("the global `tests.state.setups.data:GIVEN` changes in worker processes")
def own_loader_with_workers_over_data_that_counts_in_a_global() -> dict[str, Any]:
    return trained_on(Loader(CountedInAGlobal(), batch_size=4, shuffle=True, num_workers=1))


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


@row()
def data_that_iterates_over_itself() -> dict[str, Any]:
    return seeded(perceptron, train_data=StartingOver())


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


@row(needs="position")
def data_that_iterates_over_itself_in_an_order_of_its_own() -> dict[str, Any]:
    return seeded(perceptron, train_data=Shuffling())


class Once:
    """It does not start over."""

    def __init__(self) -> None:
        self.order = iter(batches())

    def __iter__(self) -> Once:
        return self

    def __next__(self) -> torch.Tensor:
        return next(self.order)


@row("refused: can be iterated over only once")
def data_that_iterates_over_itself_once() -> dict[str, Any]:
    return seeded(perceptron, train_data=Once())
