"""What it costs a `Loader` to begin anywhere, and what is held while it fetches batches."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from graphtrain import DataError, Loader
from tests.data.cutting import batches
from tests.data.test_shares import Counted as Windows
from tests.data.test_shares import share_of


def test_an_epoch_is_not_listed_when_it_begins() -> None:
    """A list of the batches of this epoch would fit no memory."""
    loader = Loader(range(10**13), 4)
    first = list(itertools.islice(loader.batches(0, start=10**12), 2))
    assert batches(first) == [
        [4 * 10**12 + number for number in range(4)],
        [4 * 10**12 + number for number in range(4, 8)],
    ]
    one_by_one = Loader(range(10**13), None)
    assert list(itertools.islice(one_by_one.batches(0, start=10**12), 2)) == [10**12, 10**12 + 1]


@pytest.mark.parametrize("size", [1, 3, 4, 11, 12, None])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_batches_of_a_slice_are_those_of_a_list(size: int | None, drop_last: bool, shuffle: bool) -> None:
    if size is None and drop_last:
        pytest.skip("there is no last batch to drop")
    loader = Loader(range(11), size, shuffle, drop_last=drop_last, seed=2)
    everything = batches(loader.batches(1))
    assert len(everything) == len(loader)
    order = everything if size is None else [index for batch in everything for index in batch]
    assert sorted(order) == sorted(set(order))
    if not drop_last:
        assert sorted(order) == list(range(11))
    for start in range(len(everything) + 2):
        assert batches(loader.batches(1, start)) == everything[start:]


def test_indices_reach_the_data_set_as_integers() -> None:
    class Seen(list[int]):
        def __getitem__(self, index: Any) -> Any:
            assert type(index) is int
            return super().__getitem__(index)

    for size in (None, 2):
        assert len(list(Loader(Seen(range(5)), size, shuffle=True))) == (5 if size is None else 3)


def test_a_sampler_is_asked_once_an_epoch_and_drawn_to_its_end() -> None:
    """Under the seed of the epoch, so from anywhere the same; nothing of it is left for later."""

    class Counted(torch.utils.data.Sampler[int]):
        asked = ended = 0

        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Iterator[int]:
            self.asked += 1
            for _ in range(6):
                yield int(torch.randint(100, ()))
            self.ended += 1

    sampler = Counted()
    loader = Loader(range(100), 2, sampler=sampler, seed=1)
    iterator = loader.batches(0, start=1)
    assert (sampler.asked, sampler.ended) == (1, 1)
    torch.rand(3)
    assert batches(iterator) == batches(loader.batches(0))[1:]


def test_a_copy_of_a_loader_goes_on_where_it_is() -> None:
    loader = Loader(range(6), 2, shuffle=True)
    list(loader)
    # What Python 3.14 cannot copy any more.
    assert not [name for name, value in vars(loader).items() if type(value).__module__ == "itertools"]
    assert batches(copy.deepcopy(loader)) == batches(loader.batches(1)) != batches(loader.batches(0))


def test_it_can_be_copied_at_any_time() -> None:
    loader = Loader(list(range(6)), 2, shuffle=True, seed=1)
    expected = batches(loader.batches(0))
    assert batches(copy.deepcopy(loader).batches(0)) == expected


def in_one_process(loader: Loader) -> Any:
    return loader.batches(0)


def as_a_share(loader: Loader) -> Any:
    share = share_of(loader, 0, 1, 0, Windows(None))
    share.begin_round(0, 1)
    next(share)
    return share


@pytest.mark.parametrize("begin", [in_one_process, as_a_share])
def test_nothing_waits_for_the_garbage_collector_to_end_workers(begin: Callable[[Loader], Any]) -> None:
    gc.disable()
    try:
        loader = Loader(range(40), 2, seed=1, num_workers=1, persistent_workers=True)
        begun = begin(loader)
        [worker] = multiprocessing.active_children()
        del loader, begun
        assert worker not in multiprocessing.active_children()
    finally:
        gc.enable()


# ---- what is held while batches are fetched


class Holding:
    """Gives each sample a number that depends on what it has come to hold."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)
        self.fetched = 0

    _graphtrain_not_state = ("fetched",)

    def __len__(self) -> int:
        return 8


class Lazy(Holding):
    """Makes its generator with the first sample."""

    def __getitem__(self, index: int) -> float:
        self.fetched += 1
        if not hasattr(self, "generator"):
            self.generator = random.Random()
        return index + self.generator.random()


def test_a_batch_before_which_a_generator_was_made_is_fetched_again_under_its_seed() -> None:
    data, other = Lazy(), Lazy()
    first = batches(Loader(data, 2, seed=1).batches(0))
    assert first == batches(Loader(other, 2, seed=1).batches(0)) and data.fetched == 10
    assert first == batches(Loader(data, 2, seed=1).batches(0)) and data.fetched == 18
    assert first != batches(Loader(data, 2, seed=2).batches(0))


def test_samples_are_collated_unless_they_come_one_by_one() -> None:
    assert batches(Loader(range(3), 2).batches(0)) == [[0, 1], [2]]
    assert list(Loader(range(3), None).batches(0)) == [0, 1, 2]
    assert batches(Loader(range(3), batch_sampler=[[0, 2], [1]]).batches(0)) == [[0, 2], [1]]
    assert list(Loader("abc", 2, collate_fn="".join, drop_last=True).batches(0)) == ["ab"]


def test_persistent_workers_are_ended_with_their_loader() -> None:
    ended: list[str] = []

    def iterator(name: str) -> Any:
        return types.SimpleNamespace(_shutdown_workers=lambda: ended.append(name), _persistent_workers=True)

    for inner, expected in (
        (None, "given"),
        (types.SimpleNamespace(persistent_workers=False), "given"),
        (types.SimpleNamespace(persistent_workers=True, _iterator=None), "given"),
        (types.SimpleNamespace(persistent_workers=True, _iterator=iterator("held")), "held"),
    ):
        loader: Any = Loader(range(4), 2)
        loader._inner = inner
        assert loader.release(iterator("given")) is True and ended.pop() == expected
        assert (loader._inner is None) is (inner is None or inner.persistent_workers)
    assert Loader(range(4), 2).release(iter([])) is False


# ---- keywords, and what is refused


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class SizedStream(Stream):
    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"dataset": iter([1])}, "Loader takes a dataset with __getitem__ and __len__; got list_iterator\n  hint: pass "
         "the iterable itself, or a DataLoader over it, as train_data"),
        ({"dataset": SizedStream()}, "Loader takes a dataset with __getitem__ and __len__; got SizedStream\n  hint: "
         "pass the iterable itself, or a DataLoader over it, as train_data"),
        ({"dataset": {1}}, "Loader takes a dataset with __getitem__ and __len__; got set\n  hint: pass the iterable "
         "itself, or a DataLoader over it, as train_data"),
        ({"sampler": [1], "shuffle": True}, "Loader: `sampler` and `shuffle` are mutually exclusive"),
        *(({"batch_sampler": [[1]], **more},
           "Loader: `batch_sampler` excludes batch_size, shuffle, sampler and drop_last")
          for more in ({"batch_size": 2}, {"shuffle": True}, {"sampler": [1]}, {"drop_last": True})),
        ({"batch_size": None, "drop_last": True}, "Loader: drop_last has no effect without a batch_size"),
        *(({"batch_size": size}, f"Loader: batch_size must be a whole number > 0, or None; got {size!r}")
          for size in (0, -1, 2.0, "2")),
        ({"in_order": False}, "Loader: in_order=False gives batches in the order workers finish, which is not "
         "reproducible"),
    ],
)  # fmt: skip
def test_a_loader_that_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        Loader(**{"dataset": range(8), **keywords})
    assert str(caught.value) == message


def test_a_sampler_may_have_no_length_and_has_an_end() -> None:
    for keywords in ({"sampler": iter([1])}, {"batch_sampler": iter([[1]])}):
        loader = Loader(range(8), **keywords)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(loader)
        assert [batch.tolist() for batch in loader] == [[1]]
    for keywords in ({"sampler": itertools.repeat(1)}, {"batch_sampler": itertools.repeat([1] * 1_000)}):
        with pytest.raises(DataError, match="has no length, and has given more than 1,000,000 samples"):
            next(iter(Loader(range(8), **keywords)))  # type: ignore[arg-type]


def test_lengths_of_loaders() -> None:
    for drop_last, length in ((False, 4), (True, 3)):
        assert len(Loader(range(10), 3, drop_last=drop_last)) == length
    loader = Loader(range(10), 3, sampler=[5, 6])
    assert len(loader) == 1
    assert len(Loader(range(10), batch_sampler=[[1], [2]])) == 2 and len(Loader(range(10), None)) == 10


def test_epochs_are_counted_by_iteration() -> None:
    loader = Loader(range(6), 6, shuffle=True, seed=1)
    drawn = [next(iter(loader)).tolist() for _ in range(3)]
    assert drawn == [next(loader.batches(epoch)).tolist() for epoch in range(3)]
