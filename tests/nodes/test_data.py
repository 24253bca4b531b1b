"""Data: `Loader`, the position in any kind of data, and the number of samples in a batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from graphtrain import DataError, Graph, Loader, Trainer
from graphtrain.data.source import source_of
from graphtrain.kind import kind_of
from graphtrain.nodes.next_batch import NextBatch

LENGTH = 11


class Noisy:
    """Ten numbers, each with random numbers from every generator."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> list[float]:
        if not 0 <= index < LENGTH:
            raise IndexError(index)
        return [float(index), random.random(), float(numpy.random.rand()), float(torch.rand(()))]


def noisy_collate(samples: list[list[float]]) -> torch.Tensor:
    """The samples, and a row of random numbers drawn by the collation."""
    return torch.tensor([*samples, [random.random(), float(numpy.random.rand()), float(torch.rand(())), 0.0]])


def plain(batches: Any) -> list[Any]:
    """Batches as nested lists, to be compared with ``==``."""
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def indices(batches: Any) -> list[list[int]]:
    """The indices in each batch of a `noisy_collate` loader."""
    return [[int(row[0]) for row in batch[:-1]] for batch in plain(batches)]


def order(batches: Any) -> list[int]:
    """All indices of an epoch, in order."""
    return [index for batch in indices(batches) for index in batch]


def noisy(**options: Any) -> Loader:
    return Loader(Noisy(), **{"batch_size": 4, "collate_fn": noisy_collate, "seed": 3, **options})


def generator_states() -> list[Any]:
    return [random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()]


def seed_all(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


# Loader: what a batch is depends on its number and nothing else


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "drop_last": True},
        {"sampler": RandomSampler(range(LENGTH), replacement=True, num_samples=9)},
        {"batch_sampler": BatchSampler(RandomSampler(range(LENGTH)), 3, False), "batch_size": 1},
    ],
    ids=["in order", "shuffled", "drop_last", "sampler", "batch_sampler"],
)
def test_batches_are_the_same_for_any_number_of_workers_and_from_any_start(options: dict[str, Any]) -> None:
    alone, helped = noisy(**options), noisy(**options, num_workers=2)
    for epoch in (0, 3):
        everything = plain(alone.batches(epoch))
        assert len(everything) == len(alone) == len(helped)
        assert plain(helped.batches(epoch)) == everything
        for start in range(len(everything) + 1):
            assert plain(alone.batches(epoch, start)) == everything[start:]
        assert plain(helped.batches(epoch, start=2)) == everything[2:]


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_generators_neither_matter_nor_move(workers: int) -> None:
    loader = noisy(shuffle=True, num_workers=workers)
    seed_all(1)
    before = generator_states()
    batches = loader.batches(1)
    found = []
    for batch in batches:
        assert generator_states() == before
        found.append(batch)
    assert generator_states() == before
    seed_all(2)
    assert plain(loader.batches(1)) == plain(found)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: RandomSampler(range(LENGTH)),
        lambda: RandomSampler(range(LENGTH), generator=torch.Generator()),
        lambda: WeightedRandomSampler([1.0] * LENGTH, LENGTH, generator=torch.Generator().manual_seed(5)),
    ],
    ids=["global", "own", "weighted"],
)
def test_a_sampler_draws_under_the_seed_of_the_epoch(sampler: Callable[[], Sampler[int]]) -> None:
    """Also from a generator of its own: else the order would depend on how many epochs were drawn before."""
    loader = noisy(sampler=sampler())
    in_turn = [indices(loader.batches(epoch)) for epoch in range(3)]
    assert indices(loader.batches(1)) == in_turn[1] == indices(noisy(sampler=sampler()).batches(1))
    assert in_turn[0] != in_turn[1]
    within = Loader(Noisy(), batch_sampler=BatchSampler(sampler(), 4, False), collate_fn=noisy_collate, seed=3)
    assert indices(within.batches(1)) == in_turn[1]


def test_a_loader_without_a_seed_takes_that_of_the_run_which_draws_from_it() -> None:
    loader = noisy(shuffle=True, seed=None)
    one, two = (source_of(loader, seed=seed, saving=True, notify=print) for seed in (1, 2))
    first = plain(one.open(0)[0])
    assert plain(two.open(0)[0]) == plain(noisy(shuffle=True, seed=2).batches(0)) != first
    assert plain(one.open(0)[0]) == first == plain(noisy(shuffle=True, seed=1).batches(0))
    for source in (source_of(loader, seed=seed, saving=True, notify=print) for seed in (None, 0)):
        assert plain(source.open(0)[0]) == plain(noisy(shuffle=True, seed=0).batches(0))
    given = source_of(noisy(shuffle=True, seed=3), seed=1, saving=True, notify=print)
    assert plain(given.open(0)[0]) == plain(noisy(shuffle=True, seed=3).batches(0))


# Loader: what it takes from DataLoader


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": 4}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]),
        ({"batch_size": 4, "drop_last": True}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ({"batch_size": 20}, [list(range(11))]),
        ({"batch_size": 20, "drop_last": True}, []),
        ({}, [[number] for number in range(11)]),
        ({"batch_size": None}, list(range(11))),
        ({"sampler": [5, 1, 9], "batch_size": 2}, [[5, 1], [9]]),
        ({"sampler": [5, 1, 9], "batch_size": None}, [5, 1, 9]),
        ({"sampler": SequentialSampler(range(3)), "batch_size": 2, "drop_last": True}, [[0, 1]]),
        ({"batch_sampler": [[3, 1], [7], [0, 0, 2]]}, [[3, 1], [7], [0, 0, 2]]),
        ({"batch_sampler": BatchSampler([8, 9, 10], 2, True)}, [[8, 9]]),
        ({"batch_size": 6, "collate_fn": sum}, [15, 40]),
        ({"batch_size": 6, "collate_fn": sum, "num_workers": 2}, [15, 40]),
        ({"batch_size": None, "collate_fn": None, "num_workers": 2, "prefetch_factor": 1}, list(range(11))),
    ],
    ids=range(14),
)
def test_batches_and_their_number(options: dict[str, Any], expected: list[Any]) -> None:
    loader = Loader(range(11), **options)
    assert plain(loader) == plain(loader.batches(7)) == expected
    assert len(loader) == len(expected)
    if "collate_fn" not in options:  # as torch itself does
        assert plain(DataLoader(range(11), **options)) == expected


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Unlengthy:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (Endless(), {}, "takes a dataset with __getitem__ and __len__; got Endless"),
        (Unlengthy(), {}, "takes a dataset with __getitem__ and __len__; got Unlengthy"),
        (iter([1]), {}, "takes a dataset with __getitem__ and __len__; got list_iterator"),
        (range(4), {"in_order": False}, "in_order=False"),
        (range(4), {"sampler": [1], "shuffle": True}, "`sampler` and `shuffle` are mutually exclusive"),
        (range(4), {"batch_sampler": [[1]], "batch_size": 2}, "`batch_sampler` excludes"),
        (range(4), {"batch_sampler": [[1]], "batch_size": None}, "`batch_sampler` excludes"),
        (range(4), {"batch_sampler": [[1]], "shuffle": True}, "`batch_sampler` excludes"),
        (range(4), {"batch_sampler": [[1]], "sampler": [1]}, "`batch_sampler` excludes"),
        (range(4), {"batch_sampler": [[1]], "drop_last": True}, "`batch_sampler` excludes"),
        (range(4), {"batch_size": None, "drop_last": True}, "without a batch_size"),
        (range(4), {"batch_size": 0}, "batch_size must be a whole number > 0, or None; got 0"),
        (range(4), {"batch_size": -1}, "batch_size must be a whole number > 0, or None; got -1"),
        (range(4), {"batch_size": 2.5}, "batch_size must be a whole number > 0, or None; got 2.5"),
    ],
)
def test_what_a_loader_refuses(dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        Loader(dataset, **options)


# next_batch: where in the data the run is


def batches_of(count: int) -> list[torch.Tensor]:
    return [torch.full((2,), float(number)) for number in range(count)]


class Unsized:
    """An iterable that starts over, without a `len()`."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(batches_of(self.count))


class Sized(Unsized):
    def __len__(self) -> int:
        return self.count


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        return iter(batches_of(self.count) if info is None else batches_of(self.count)[info.id :: info.num_workers])


def fetching(data: Any, limit: int | None = None, saving: bool = False, **more: Any) -> Any:
    instance = kind_of(NextBatch).new_instance()
    instance.limit = limit
    instance.setup(data, 0, torch.device("cpu"), saving, lambda line: None, **more)
    return instance


KINDS: dict[str, tuple[Callable[[int], Any], bool]] = {  # data of so many batches, and whether it knows how many
    "list": (batches_of, True),
    "tuple": (lambda count: tuple(batches_of(count)), True),
    "Loader": (lambda count: Loader(batches_of(count), batch_size=None), True),
    "Loader, 2 workers": (lambda count: Loader(batches_of(count), batch_size=None, num_workers=2), True),
    "DataLoader": (lambda count: DataLoader(batches_of(count), batch_size=None), True),
    "DataLoader, 2 workers": (lambda count: DataLoader(batches_of(count), batch_size=None, num_workers=2), True),
    "sized iterable": (Sized, True),
    "unsized iterable": (Unsized, False),
    "IterableDataset": (Stream, False),
    "DataLoader of an IterableDataset": (lambda count: DataLoader(Stream(count), batch_size=None), False),
    "the same, 2 workers": (lambda count: DataLoader(Stream(count), batch_size=None, num_workers=2), False),
}


@pytest.mark.second(4)
@pytest.mark.first(2)
@pytest.mark.parametrize(("made", "sized"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("saving", [False, True])
def test_the_position_in_every_kind_of_data(made: Callable[[int], Any], sized: bool, saving: bool) -> None:
    node = fetching(made(3), saving=saving)
    for epoch in range(3):
        for number in range(3):
            batch, samples = node()
            assert (batch.tolist(), samples) == ([number, number], 2)
            assert (node.epoch, node.epoch_batches, node.batches) == (epoch, number + 1, 3 * epoch + number + 1)
            assert (node.last, node.exhausted, node.empty) == (number == 2, False, False)
            assert node.batch_index == number
            assert node.length == (3 if sized else None)
            # Sized data is not looked ahead in; unsized data is, by one.
            assert [one.tolist() for one in node._opened.ahead] == ([] if sized or number == 2 else [[number + 1] * 2])
    assert node.samples == 18


@pytest.mark.first(3)
@pytest.mark.parametrize(("made", "sized"), KINDS.values(), ids=KINDS)
def test_a_limit_ends_the_epoch_in_every_kind_of_data(made: Callable[[int], Any], sized: bool) -> None:
    node = fetching(made(5), limit=2)
    seen = [(float(node()[0][0]), node.last, node.exhausted) for _ in range(4)]
    assert seen == [(0.0, False, False), (1.0, True, False)] * 2


def generated() -> Iterator[torch.Tensor]:
    yield from batches_of(3)


@pytest.mark.parametrize(
    "made",
    [generated, lambda: iter(batches_of(3)), lambda: map(torch.ones, [2]), lambda: zip([1], [2], strict=True)],
    ids=["generator", "list iterator", "map", "zip"],
)
def test_a_one_shot_iterator_is_refused_only_where_positions_are_saved(made: Callable[[], Any]) -> None:
    fetching(made(), saving=False)
    with pytest.raises(DataError, match="can be iterated over only once, so no resume could be exact"):
        fetching(made(), saving=True)


def trainer(run_dir: Path | None, data: Any, notify: Callable[[str], None] = print) -> Trainer:
    model = torch.nn.Linear(2, 1)
    return Trainer(
        Graph.load("fit").set("finish", after="2 epochs"),
        seed=0,
        run_dir=run_dir,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=data,
        training_step=lambda model, batch: model(batch).mean(),
        device="cpu",
        notify=notify,
    )


@pytest.mark.full
def test_a_run_refuses_what_it_could_not_resume_before_it_trains(tmp_path: Path) -> None:
    persistent = DataLoader(batches_of(3), batch_size=None, num_workers=1, persistent_workers=True)
    with pytest.raises(DataError, match=r"DataLoader with persistent_workers=True cannot be resumed exactly"):
        trainer(tmp_path / "a", persistent).run()
    with pytest.raises(DataError, match="only once"):
        trainer(tmp_path / "b", generated()).run()
    for path in ("a", "b"):
        assert not (tmp_path / path / "checkpoints").exists() or not list((tmp_path / path / "checkpoints").iterdir())
    trainer(None, persistent).run()
    trainer(None, generated()).run()
    persistent._iterator._shutdown_workers()  # type: ignore[union-attr]  # in a garbage collection it takes 5 seconds


# How many samples a batch holds


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


SAMPLES: dict[str, tuple[Any, int]] = {
    "a tensor": (torch.zeros(5, 2), 5),
    "an empty tensor": (torch.zeros(0, 2), 0),
    "a scalar": (torch.tensor(3.0), 1),
    "a tuple": ((torch.zeros(4), torch.zeros(9)), 4),
    "a list": ([torch.zeros(3, 8), torch.zeros(9)], 3),
    "a named tuple": (Pair(torch.zeros(6), torch.zeros(2)), 6),
    "a dict": ({"inputs": torch.zeros(7, 1), "targets": torch.zeros(2)}, 7),
    "a dict whose first value is no tensor": ({"names": ["a", "b"], "inputs": torch.zeros(7)}, 7),
    "a nest": ([{"names": "abc", "parts": ("x", [torch.zeros(2, 5)])}, torch.zeros(9)], 2),
    "a scalar first": ((torch.tensor(1.0), torch.zeros(4)), 1),
    "no tensor": (["a", "b"], 1),
    "nothing": ((), 1),
}


def test_samples_are_what_batch_size_says() -> None:
    node = fetching([["a", "bb", "ccc"], ["d"]], batch_size=lambda batch: sum(len(word) for word in batch))
    assert [node()[1], node()[1], node.samples] == [6, 1, 7]


def test_samplers_get_the_epoch() -> None:
    class Numbered(torch.utils.data.Sampler[int]):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter([self.epoch] * 2)

        def __len__(self) -> int:
            return 2

    for loader in (Loader(range(9), 2, sampler=Numbered()), DataLoader(range(9), 2, sampler=Numbered())):
        node = fetching(loader)
        assert [node()[0].tolist() for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]
