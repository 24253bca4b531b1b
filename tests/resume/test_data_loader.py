"""Promise 10: a `Loader` gives the batches of torch's DataLoader, each the same from wherever an epoch is begun."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from graphtrain import DataError, Loader
from tests.resume.data_kinds import Noisy, Samples, noisy_collate
from tests.world import assert_same, seed_generators


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


# ---- which batches


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 2, "sampler": [5, 1, 3]},
        {"batch_sampler": [[0, 2], [1]]},
        {"batch_size": 2, "collate_fn": lambda samples: (len(samples), torch.stack(samples))},
    ],
    ids=lambda options: ", ".join(options),
)
def test_batches_are_those_of_torchs_loader(options: dict[str, Any]) -> None:
    loader, theirs = Loader(Samples(), **options), DataLoader(Samples(), **options)
    assert len(loader) == len(theirs)
    assert_same([*loader], [*theirs])
    epoch = loader.epoch(0)
    assert len(epoch) == len(theirs)
    counts = [len(batch[1]) if isinstance(batch, tuple) else batch.numel() for batch in theirs]
    assert [epoch.samples(number) for number in range(len(epoch))] == counts


@pytest.mark.parametrize("size", [1, 3, 4, 11, 12, None])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_from_anywhere_is_the_rest_of_it(size: int | None, drop_last: bool, shuffle: bool) -> None:
    drop_last = drop_last and size is not None
    loader = Loader(range(11), size, shuffle, drop_last=drop_last, seed=2)
    everything = plain(loader.batches(1))
    assert len(everything) == len(loader) == len(loader.epoch(1))
    order = everything if size is None else [index for batch in everything for index in batch]
    assert len({*order}) == len(order) and ({*order} == {*range(11)} or drop_last)
    assert (order == sorted(order)) is not shuffle or len(order) < 2
    for start in range(len(everything) + 2):
        assert plain(loader.batches(1, start)) == everything[start:]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_random_numbers_of_a_batch_follow_from_seed_epoch_and_number(workers: int) -> None:
    def batches(epoch: int, start: int = 0, **options: Any) -> list[Any]:
        given = {"seed": 1, "shuffle": True, "collate_fn": noisy_collate, "num_workers": workers, **options}
        seed_generators(random.randrange(1000))
        return plain(Loader(Noisy(), 3, **given).batches(epoch, start))

    first = batches(0)
    assert first == batches(0) == batches(0, num_workers=0)
    assert batches(0, 2) == first[2:]
    assert first != batches(1) and first != batches(0, seed=2)


def test_the_global_generators_are_not_drawn_from() -> None:
    seed_generators(3)
    expected = torch.rand(3), random.random()
    seed_generators(3)
    [*Loader(Noisy(), 3, shuffle=True).batches(0)]
    assert torch.equal(torch.rand(3), expected[0]) and random.random() == expected[1]


def test_epochs_are_counted_by_iteration_and_a_copy_goes_on_where_it_is() -> None:
    loader = Loader([*range(6)], 6, shuffle=True, seed=1)
    drawn = [plain(loader)[0] for _ in range(3)]
    assert drawn == [plain(loader.batches(epoch))[0] for epoch in range(3)] and drawn[0] != drawn[1]
    # What Python 3.14 cannot copy any more.
    assert not [name for name, value in vars(loader).items() if type(value).__module__ == "itertools"]
    assert plain(copy.deepcopy(loader)) == plain(loader.batches(3)) != plain(loader.batches(0))


def test_the_seed_of_the_run_is_for_a_loader_that_has_none() -> None:
    own, none = Loader(range(50), 50, shuffle=True, seed=1), Loader(range(50), 50, shuffle=True)
    assert plain(own.batches(0, seed=2)) == plain(own.batches(0)) == plain(none.batches(0, seed=1))
    assert plain(none.batches(0, seed=2)) != plain(none.batches(0))


def test_only_the_samples_that_are_asked_for() -> None:
    loader = Loader(range(20), 3, shuffle=True, seed=1)
    asked = plain(loader.batches(0, indices=torch.tensor([7, 3, 11, 5])))
    assert sorted(index for batch in asked for index in batch) == [3, 5, 7, 11]
    in_order = Loader(range(20), 3).batches(0, indices=torch.tensor([7, 3, 11, 5]))
    assert plain(in_order) == [[7, 3, 11], [5]]


def test_an_epoch_is_not_listed_when_it_begins() -> None:
    """A list of the batches of this epoch would fit no memory."""
    begun = Loader(range(10**13), 4).batches(0, start=10**12)
    assert plain(itertools.islice(begun, 2)) == [
        [4 * 10**12 + n for n in range(4)],
        [4 * 10**12 + n for n in (4, 5, 6, 7)],
    ]
    one_by_one = Loader(range(10**13), None).batches(0, start=10**12)
    assert [*itertools.islice(one_by_one, 2)] == [10**12, 10**12 + 1]


def test_indices_reach_the_data_set_as_integers() -> None:
    class Seen(list[int]):
        def __getitem__(self, index: Any) -> Any:
            assert type(index) is int
            return super().__getitem__(index)

    for size, length in ((None, 5), (2, 3)):
        assert len([*Loader(Seen(range(5)), size, shuffle=True)]) == length


def test_a_sampler_is_drawn_to_its_end_under_the_seed_of_the_epoch() -> None:
    class Drawing(Sampler[int]):
        asked = ended = 0

        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Iterator[int]:
            self.asked += 1
            yield from (int(torch.randint(100, ())) for _ in range(6))
            self.ended += 1

    loader = Loader(range(100), 2, sampler=(sampler := Drawing()), seed=1)
    iterator = loader.batches(0, start=1)
    assert (sampler.asked, sampler.ended) == (1, 1)
    torch.rand(3)
    assert plain(iterator) == plain(loader.batches(0))[1:]


@pytest.mark.parametrize("keywords", [{"sampler": iter([1])}, {"batch_sampler": itertools.repeat([1])}])
def test_a_sampler_without_a_length_is_refused(keywords: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="has no length, but an epoch is drawn when it begins"):
        next(iter(Loader(range(8), **keywords)))


def test_a_batch_before_which_a_generator_was_made_is_fetched_again_under_its_seed() -> None:
    class Lazy:
        """Makes its generator with the first sample."""

        fetched = 0

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> float:
            self.fetched += 1
            if not hasattr(self, "generator"):
                self.generator = random.Random()
            return index + self.generator.random()

    data, other = Lazy(), Lazy()
    first = plain(Loader(data, 2, seed=1).batches(0))
    assert first == plain(Loader(other, 2, seed=1).batches(0)) and data.fetched == 10
    assert first == plain(Loader(data, 2, seed=1).batches(0)) and data.fetched == 18
    assert first != plain(Loader(data, 2, seed=2).batches(0))


def test_a_generator_that_is_replaced_is_no_further_one() -> None:
    """A batch is fetched once, unless a generator was made for it."""

    class Replacing(Samples):
        generator = None
        fetched = 0

        def __getitem__(self, index: int) -> torch.Tensor:
            self.fetched += 1
            self.generator = random.Random(index)  # type: ignore[assignment]
            return super().__getitem__(index)

    data = Replacing()
    [*Loader(data, 2).batches(0)]
    assert data.fetched == 14 + 2


# ---- worker processes


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_with_their_loader(persistent: bool) -> None:
    """At once, without the garbage collector."""
    gc.collect()
    before = {*multiprocessing.active_children()}
    gc.disable()
    try:
        loader = Loader(range(40), 2, seed=1, num_workers=1, persistent_workers=persistent)
        batches = loader.batches(0)
        next(batches)
        assert len({*multiprocessing.active_children()} - before) == 1
        del batches
        assert len({*multiprocessing.active_children()} - before) == persistent
        again = loader.batches(0)
        assert len([*again]) == 20
        del loader, again
        assert not {*multiprocessing.active_children()} - before
    finally:
        gc.enable()


# ---- what is refused


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))

    def __len__(self) -> int:
        return 5


NO_DATASET = "Loader takes a dataset with __getitem__ and __len__; got "
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dataset": iter([1])}, f"{NO_DATASET}list_iterator"),
    ({"dataset": Stream()}, f"{NO_DATASET}Stream"),
    ({"dataset": {1}}, f"{NO_DATASET}set"),
    ({"sampler": [1], "shuffle": True}, "`sampler` and `shuffle` are mutually exclusive"),
    ({"batch_sampler": [[1]], "batch_size": 2}, "`batch_sampler` excludes batch_size, shuffle, sampler and drop_last"),
    ({"batch_sampler": [[1]], "shuffle": True}, "`batch_sampler` excludes"),
    ({"batch_sampler": [[1]], "sampler": [1]}, "`batch_sampler` excludes"),
    ({"batch_sampler": [[1]], "drop_last": True}, "`batch_sampler` excludes"),
    *(({"batch_size": size}, f"batch_size must be a whole number > 0, or None; got {size!r}") for size in (0, -1, "2")),
    ({"batch_size": 2.0}, "batch_size must be a whole number"),
    ({"prefetch": 2, "pin_memory": True}, "Loader: it has no argument prefetch"),
    ({"generator": None}, "Loader: it has no argument generator"),
    ({"in_order": False}, "in the order workers finish, which is not reproducible"),
]


@pytest.mark.parametrize(("keywords", "message"), REFUSED)
def test_a_loader_that_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as refused:
        Loader(**{"dataset": range(8), **keywords})
    assert message in str(refused.value)
