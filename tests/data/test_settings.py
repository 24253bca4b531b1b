"""What is known of data before it is read: its settings, lengths, samples and names; and what of it is refused."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data import WeightedRandomSampler as Weighted

from graphtrain import DataError, Loader
from graphtrain.data.fingerprint import data_changes, fingerprint
from graphtrain.data.loader import Generators, derived_seed
from graphtrain.data.loaders import RankLocal, are_loaders, by_name, is_data, loaders_of, own_data, rank_local
from graphtrain.data.samplers import (
    EpochLength,
    announce_epoch,
    draws_at_once,
    epoch_length,
    generators_of,
    held_generators,
    length_of,
    samples_per_batch,
    selection_of,
)
from graphtrain.data.source import keeps_position, parts_beside_position


class Own(RandomSampler):
    pass


class OwnBatches(BatchSampler):
    pass


class Unsized:
    def __iter__(self) -> Iterator[int]:
        return iter([1])


class Sized(Unsized):
    def __len__(self) -> int:
        return 3


class Failing(Sized):
    def __len__(self) -> int:
        raise NotImplementedError


class Breaking(Sized):
    def __len__(self) -> int:
        raise OSError


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class SizedStream(Stream):
    def __len__(self) -> int:
        return 5


class Counted(Dataset[int]):
    """Counts what it gives."""

    given = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.given += 1
        return index


class OwnLoader(Loader):
    pass


# ---- fingerprints

SETTINGS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "Loader": (
        lambda: Loader(range(8), 3, shuffle=True, num_workers=2, drop_last=True),
        {"loader": "Loader", "batch size": 3, "shuffle": True, "sampler": None, "drop_last": True},
    ),
    "Loader with a sampler": (
        lambda: Loader(range(8), None, sampler=SequentialSampler(range(8))),
        {"batch size": 1, "shuffle": False, "sampler": "SequentialSampler"},
    ),
    "Loader with a batch sampler": (
        lambda: OwnLoader(range(8), batch_sampler=[[1]]),
        {"loader": "OwnLoader", "batch size": None, "sampler": "list"},
    ),
    "DataLoader": (
        lambda: DataLoader(range(8), 3),
        {"loader": "DataLoader", "batch size": 3, "shuffle": False, "sampler": None, "drop_last": False, "workers": 0},
    ),
    "DataLoader that shuffles": (lambda: DataLoader(range(8), 3, shuffle=True), {"shuffle": True, "sampler": None}),
    "DataLoader with a sampler": (
        lambda: DataLoader(range(8), 3, sampler=Own(range(8))), {"shuffle": False, "sampler": "Own"},
    ),
    "DataLoader with a batch sampler": (
        lambda: DataLoader(range(8), batch_sampler=OwnBatches(RandomSampler(range(8)), 2, False)),
        {"batch size": None, "shuffle": False, "sampler": "OwnBatches"},
    ),
    "DataLoader over a stream": (lambda: DataLoader(Stream(), 2), {"batch size": 2, "sampler": None}),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_loader(name: str) -> None:
    make, expected = SETTINGS[name]
    found = fingerprint(make())
    assert {key: found[key] for key in expected} == expected


def test_the_length_and_samples_of_data() -> None:
    data = Counted()
    assert fingerprint(data) == {"length": 8, "hash": ""} and data.given == 0
    assert fingerprint(Unsized()) == {"length": None, "hash": ""}
    assert fingerprint(Breaking())["length"] is None
    facts = fingerprint(Loader([1, 2, 3, 4, 5], 2))
    assert (facts["length"], facts["samples"], len(facts["hash"])) == (3, 5, 16)
    assert fingerprint(RankLocal([1, 2]))["hash"] == fingerprint([1, 2])["hash"]
    assert fingerprint([])["hash"] == "" and fingerprint(Subset([1, 2], [5]))["hash"] == ""


def test_a_few_samples_count() -> None:
    """The first, the last and the one in the middle."""

    def hashed(data: Any) -> Any:
        return fingerprint(data)["hash"]

    for make in (list, tuple, torch.tensor, numpy.array, lambda numbers: TensorDataset(torch.tensor(numbers))):
        numbers = [*range(8)]
        before = hashed(make(numbers))
        assert before
        for index in range(8):
            others = [*numbers]
            others[index] = 100
            assert (hashed(make(others)) != before) is (index in (0, 4, 7))
    whole = [*range(9)]
    assert hashed(Subset(whole, [1, 2, 3])) == hashed([1, 2, 3]) != hashed(whole)
    assert hashed(Subset(Subset(whole, range(1, 4)), (0, 1, 2))) == hashed([1, 2, 3])
    own = type("OwnTensor", (torch.Tensor,), {})
    for data in (TensorDataset(torch.ones(2).as_subclass(own)), Subset(Counted(), [1]), type("L", (list,), {})([1])):
        assert hashed(data) == ""


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        ({}, []),
        ({"samples": 9, "length": 5, "hash": "b"}, ["d (length 4 -> 5, samples 8 -> 9)"]),
        ({"hash": ""}, []),
        ({"batch size": None, "another": 3}, ["d (batch size 2 -> None)"]),
    ],
)
def test_what_differs_between_data(after: dict[str, Any], changes: list[str]) -> None:
    before = {"length": 4, "samples": 8, "hash": "a", "loader": "Loader", "batch size": 2}
    assert data_changes({"d": before}, {"d": {**before, **after}}) == changes
    assert data_changes({}, {"d": before}) == []


# ---- names


def test_which_resources_are_data() -> None:
    table = {
        "train_data": True,
        "val_data": True,
        "val_data.clean": True,
        "data": True,
        "data_loader": False,
        "x": False,
    }
    assert {name: is_data(name, [1]) for name in table} == table
    assert not is_data("train_data", None)


def test_mappings_of_loaders_and_their_names() -> None:
    loaders = {"clean": [1], "noisy": RankLocal([2])}
    assert are_loaders(loaders) and loaders_of(loaders) == loaders and loaders_of([1]) == {}
    for value in (torch.ones(1), numpy.ones(1), "a", b"a", 1, 1.0, True, None, RankLocal(torch.ones(1))):
        assert not are_loaders({"clean": [1], "column": value})
    for name in (3, "", "a/b"):
        with pytest.raises(DataError) as caught:
            loaders_of({"clean": [1], name: [2]})
        assert str(caught.value) == (
            f"a loader is named {name!r}, and metrics have its name, as in `val/NAME/loss`\n  hint: name each loader "
            "in the mapping by a text without a slash"
        )
    named = dict(by_name({"train_data": loaders, "table": {"a": [1]}, "val_data": [1]}))
    assert list(named) == ["train_data.clean", "train_data.noisy", "table", "val_data"]
    assert own_data(loaders["noisy"]) == [2] == list(loaders["noisy"]) and rank_local(loaders) is loaders


# ---- samplers


@pytest.mark.parametrize(
    ("expected", "loader"),
    [
        (True, DataLoader(range(4), 2)),
        (True, DataLoader(range(4), None, shuffle=True)),
        (True, DataLoader(range(4), 2, sampler=RandomSampler(range(4), replacement=True))),
        (True, DataLoader(range(4), 2, sampler=RandomSampler(range(4), num_samples=9))),
        (True, DataLoader(range(4), 2, sampler=RandomSampler(range(4), generator=torch.Generator()))),
        (False, DataLoader(range(4), 2, sampler=RandomSampler(range(4), True, generator=torch.Generator()))),
        (False, DataLoader(range(4), 2, sampler=RandomSampler(range(4), False, 5, torch.Generator()))),
        (True, DataLoader(range(4), 2, sampler=RandomSampler(range(4), False, 4, torch.Generator()))),
        (True, DataLoader(range(4), 2, sampler=SubsetRandomSampler(range(3)))),
        (True, DataLoader(range(4), 2, sampler=Weighted([1.0] * 4, 4))),
        (True, DataLoader(range(4), 2, sampler=DistributedSampler(range(4), 2, 0))),  # type: ignore[arg-type]
        (True, DataLoader(range(4), batch_sampler=BatchSampler(SequentialSampler(range(4)), 2, False))),
        (False, DataLoader(range(4), batch_sampler=OwnBatches(SequentialSampler(range(4)), 2, False))),
        (False, DataLoader(range(4), 2, sampler=Own(range(4)))),
        (False, DataLoader(range(4), None, sampler=Own(range(4)))),
        (False, DataLoader(range(4), 2, sampler=[1, 2])),
    ],
    ids=range(16),
)
def test_an_order_that_is_drawn_at_once(loader: Any, expected: bool) -> None:
    assert draws_at_once(loader) is expected


@pytest.mark.parametrize(
    ("data", "size", "length"),
    [
        (DataLoader(range(8), 3), 3, EpochLength(3, 3, 2)),
        (DataLoader(range(8), 3, drop_last=True), 3, EpochLength(2, 3, 3)),
        (DataLoader(range(8), None), 1, EpochLength(8, 1, 1)),
        (DataLoader(range(8), 4), 4, EpochLength(2, 4, 4)),
        (DataLoader(range(8), batch_sampler=[[1], [2, 3]]), None, EpochLength(2)),
        (DataLoader(range(8), 2, sampler=[1, 2, 3]), 2, EpochLength(2, 2, 1)),
        (DataLoader(Stream(), 2), 2, None),
        (DataLoader(SizedStream(), 2), 2, EpochLength(3, 2, 1)),
        (Loader(range(8), 3), 3, EpochLength(3, 3, 2)),
        (Loader(range(8), None), 1, EpochLength(8, 1, 1)),
        (Loader(range(8), batch_sampler=[[1], [2, 3]]), None, EpochLength(2)),
        (Loader([], 3), 3, EpochLength(0)),
        ([1, 2], None, EpochLength(2)),
        (Unsized(), None, None),
        (Failing(), None, None),
        ({"a": [1], "b": Unsized()}, None, {"a": EpochLength(1), "b": None}),
    ],
    ids=range(16),
)
def test_batches_and_samples_of_an_epoch(data: Any, size: int | None, length: Any) -> None:
    assert (samples_per_batch(data), epoch_length(data)) == (size, length)


def test_other_loaders_say_their_batch_size_or_not() -> None:
    class Other(Sized):
        batch_size: Any = 2
        dataset, batch_sampler = range(5), None

    other = Other()
    assert (samples_per_batch(other), epoch_length(other)) == (2, EpochLength(3, 2, 1))
    other.batch_size = "2"
    assert (samples_per_batch(other), epoch_length(other)) == (None, EpochLength(3))
    other.batch_size, other.dataset = 2, range(4)  # a batch more than that would be
    assert epoch_length(other) == EpochLength(3)
    other.batch_size = None
    assert samples_per_batch(other) == 1
    assert length_of(None) is None and length_of(other) == 3


def test_every_part_is_told_the_epoch_once() -> None:
    class Told(Own):
        def __init__(self) -> None:
            super().__init__(range(4))
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    class ToldData(Counted):
        set_epoch = Told.set_epoch

        def __init__(self) -> None:
            self.epochs: list[int] = []

    sampler, data = Told(), ToldData()
    announce_epoch(DataLoader(data, 2, sampler=sampler), 3)
    announce_epoch(Loader(data, 2, sampler=sampler), 4)
    announce_epoch(DataLoader(data, None, sampler=sampler), 5)
    assert sampler.epochs == [3, 4, 5] == data.epochs


def test_generators_are_found_in_every_loader_of_a_mapping_once() -> None:
    one, other, own = torch.Generator(), numpy.random.default_rng(1), random.Random(1)
    loaders = {
        "a": DataLoader(range(4), sampler=RandomSampler(range(4), generator=one)),
        "b": RankLocal(DataLoader(range(4), sampler=RandomSampler(range(4), generator=one), generator=one)),
        "c": Loader(Counted(), 2),
    }
    loaders["c"].dataset.noise, loaders["c"].dataset.more = other, [own]  # not in a list
    loaders["c"].dataset.transform = loaders["c"]  # which holds it
    assert len(generators_of(loaders)) == 2
    assert held_generators(loaders["b"]) == [one] and held_generators(own) == [own]
    assert held_generators(loaders["c"]) == [other] and held_generators(3) == []


OF_SAMPLES = "`indices` must be whole numbers of samples; got "
HINT = "\n  hint: as in [0, 4, 7], or a tensor of integers with one dimension"
EMPTY = (
    "`indices` is empty: an epoch needs at least one of the 4 samples\n  hint: end the graph before `next_batch` where "
    "nothing is selected; None selects everything"
)
OUT_OF_RANGE = (
    "`indices`: there are 4 samples, with the numbers 0 to 3; got {}\n  hint: give numbers in the data set as it is "
    "supplied; numbers chosen for another one need as many samples"
)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 1.0, "a"], f"{OF_SAMPLES}a list with `float`, `str`{HINT}"),
        ((True,), f"{OF_SAMPLES}a tuple with `bool`{HINT}"),
        (torch.ones(1, 2).long(), f"{OF_SAMPLES}a tensor of shape (1, 2){HINT}"),
        (numpy.ones(2), f"{OF_SAMPLES}a tensor of torch.float64{HINT}"),
        (torch.ones(2, dtype=torch.cfloat), f"{OF_SAMPLES}a tensor of torch.complex64{HINT}"),
        (
            torch.ones(4, dtype=torch.bool),
            f"{OF_SAMPLES}a mask of shape (4,)\n  hint: mask.nonzero().flatten() are the numbers",
        ),
        ("01", f"{OF_SAMPLES}a str{HINT}"),
        (None, f"{OF_SAMPLES}nothing{HINT}"),
        ([], EMPTY),
        (range(0), EMPTY),
        ([4], OUT_OF_RANGE.format(4)),
        ([3, -1, 9], OUT_OF_RANGE.format(-1)),
    ],
)
def test_what_selects_nothing_is_refused(indices: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        selection_of(indices, 4, "samples")
    assert str(caught.value) == message


def test_a_selection_is_a_tensor_of_its_own() -> None:
    indices = torch.tensor([3, 0])
    selected = selection_of(indices, 4, "samples")
    indices[0] = 1
    assert selected.tolist() == [3, 0] and selected.dtype is torch.int64
    assert selection_of([numpy.uint8(3), numpy.int32(2), 1], 4, "samples").tolist() == [3, 2, 1]


# ---- loaders that are refused


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
    for drop_last, batches in ((False, 4), (True, 3)):
        loader = Loader(range(10), 3, drop_last=drop_last)
        assert len(loader) == batches
    loader = Loader(range(10), 3, sampler=[5, 6])
    assert len(loader) == 1
    assert len(Loader(range(10), batch_sampler=[[1], [2]])) == 2 and len(Loader(range(10), None)) == 10


def test_an_epoch_of_a_selection() -> None:
    indices = torch.tensor([7, 1, 4, 2, 9])
    in_order, shuffled = Loader(range(10), 2, seed=1), Loader(range(10), 2, shuffle=True, seed=1)
    assert [batch.tolist() for batch in in_order.batches(0, indices=indices)] == [[7, 1], [4, 2], [9]]
    assert [batch.tolist() for batch in in_order.batches(0, 1, indices=indices)] == [[4, 2], [9]]
    orders = [
        [index for batch in shuffled.batches(epoch, indices=indices) for index in batch.tolist()] for epoch in (0, 1)
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == [1, 2, 4, 7, 9] and orders[0] != orders[1]
    unseeded = [next(iter(Loader(range(50), 50, shuffle=True).batches(0, seed=seed))).tolist() for seed in (1, 2, 1)]
    assert unseeded[0] == unseeded[2] != unseeded[1]
    assert next(iter(Loader(range(50), 50, shuffle=True, seed=1).batches(0, seed=2))).tolist() == unseeded[0]


def test_epochs_are_counted_by_iteration() -> None:
    loader = Loader(range(6), 6, shuffle=True, seed=1)
    drawn = [next(iter(loader)).tolist() for _ in range(3)]
    assert drawn == [next(loader.batches(epoch)).tolist() for epoch in range(3)]


def test_seeds_differ_and_have_63_bits() -> None:
    seeds = {derived_seed(*numbers) for numbers in [(0,), (1,), (0, 1), (1, 0), (0, 1, 2), (0, 12), (), (-1,)]}
    assert len(seeds) == 8 and all(0 <= seed < 2**63 for seed in seeds) and max(seeds) > 2**61


def test_generators_of_the_nearest_objects_are_watched() -> None:
    class Part:
        held: Any

    class Slots:
        __slots__ = ("held",)

    chain: list[Any] = [Part() for _ in range(18)]
    for part, following in itertools.pairwise(chain):
        part.held = following
    generators = Generators([Slots(), chain[0]])
    assert generators.all() == []
    chain[16].new = random.Random(1)
    assert not generators.has_more()
    chain[15].new = random.Random(1)
    assert generators.has_more() and len(generators.all()) == 1 and not generators.has_more()
    chain[0].system = random.SystemRandom()
    assert not generators.has_more()
    held = Part()
    held.held = numpy.random.default_rng(1)
    assert len(Generators([held, held.held, None]).all()) == 1


# ---- positions


class Keeps(Unsized):
    def __iter__(self) -> Iterator[Any]:
        for self.drawn in range(3):
            yield self.drawn

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: Any) -> None: ...


def test_which_data_keeps_its_position() -> None:
    assert keeps_position(Keeps()) and keeps_position(RankLocal(Keeps()))
    assert not keeps_position([1]) and not keeps_position(DataLoader(range(3)))
    loader = DataLoader(Counted(), 2)
    assert parts_beside_position(RankLocal(loader)) == {"dataset": loader.dataset, "collate_fn": loader.collate_fn}
    assert parts_beside_position(DataLoader(Stream(), 2)) == parts_beside_position(Keeps()) == {}
    kept = DataLoader(type("Kept", (Counted,), {"state_dict": len})(), 2)
    assert parts_beside_position(kept) == {"collate_fn": kept.collate_fn}
