"""Generators that data holds itself, whatever their type."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from graphtrain import Loader
from graphtrain.data.samplers import generators_of
from graphtrain.state import random as random_of_state
from graphtrain.state.generators import (
    HOST,
    AnyGenerator,
    NumpyGlobal,
    generator_of,
    kind_of_generator,
    same_state,
    with_generators,
    without_generators,
)
from graphtrain.state.random import (
    RandomAside,
    capture_random,
    seed_all,
    seed_everything,
    seed_given,
    seed_the_rest,
)
from graphtrain.storage.decoding import unpack
from graphtrain.storage.encoding import Tensors, pack
from tests.data.cutting import AssertExact, batches

COUNT = 14
GENERATORS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.Generator().manual_seed(1),
    "default_rng": lambda: numpy.random.default_rng(1),
    "Philox": lambda: numpy.random.Generator(numpy.random.Philox(1)),
    "MT19937": lambda: numpy.random.Generator(numpy.random.MT19937(1)),
    "RandomState": lambda: numpy.random.RandomState(1),
    "Random": lambda: random.Random(1),
}


def number(generator: Any) -> float:
    """A number from a generator of any of these types."""
    match generator:
        case torch.Generator():
            return float(torch.randn((), generator=generator))
        case numpy.random.Generator() | numpy.random.RandomState():
            return float(generator.normal())
        case _:
            return float(generator.gauss(0, 1))


class Disturbed(Dataset[float]):
    """Numbers from 0, each disturbed from a generator that the data set holds."""

    def __init__(self, made: Callable[[], Any]) -> None:
        self.rng = made()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> float:
        return index + number(self.rng) / 10


class Transform:
    def __init__(self, made: Callable[[], Any]) -> None:
        self.noise = made()

    def __call__(self, value: float) -> float:
        return value + number(self.noise) / 10


class Transformed(Dataset[float]):
    def __init__(self, made: Callable[[], Any]) -> None:
        self.transform = Transform(made)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> float:
        return self.transform(float(index))


@pytest.mark.parametrize("made", GENERATORS.values(), ids=GENERATORS)
def test_one_interface_over_all_types(made: Callable[[], Any]) -> None:
    source = made()
    generator = generator_of(source)
    assert generator is not None
    number(source)  # NumPy's and Python's keep half of a pair of normal numbers
    tensors = Tensors("generators")
    packed = pack(generator.get_state(), "generators", tensors)
    following = [number(source) for _ in range(5)]
    generator.set_state(unpack(packed, {"generators": tensors.named}))
    assert [number(source) for _ in range(5)] == following
    generator.seed(2**62 + 1)
    seeded = [number(source), generator.draw()]
    generator.seed(2**62 + 1)
    assert [number(source), generator.draw()] == seeded != following[:2]
    other = generator_of(made())
    assert other is not None
    assert not same_state(generator.get_state(), other.get_state())


@pytest.mark.parametrize(
    "hold",
    [
        lambda data: data,
        lambda data: Subset(Subset(data, range(9)), range(5)),
        lambda data: DataLoader(data, 2),
        lambda data: DataLoader(Subset(data, range(9)), 2),
        lambda data: Loader(data, 2),
        lambda data: Loader(range(4), 2, sampler=data),
        lambda data: DataLoader(range(4), batch_sampler=data),
    ],
    ids=["itself", "Subset", "DataLoader", "DataLoader of a Subset", "Loader", "sampler", "batch_sampler"],
)
@pytest.mark.parametrize("made", GENERATORS.values(), ids=GENERATORS)
def test_where_generators_are_found(hold: Callable[[Any], Any], made: Callable[[], Any]) -> None:
    for data in (Disturbed(made), Transformed(made)):
        (found,) = generators_of(hold(data))
        found.seed(4)
        again = generator_of(made())
        assert isinstance(again, type(found))
        again.seed(4)
        assert found.draw() == again.draw()


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("kind", [Disturbed, Transformed])
@pytest.mark.parametrize("made", GENERATORS.values(), ids=GENERATORS)
def test_a_loader_seeds_them_for_every_batch(made: Callable[[], Any], kind: Callable[[Any], Any]) -> None:
    data = kind(made)
    loader = Loader(data, 3, shuffle=True, seed=1)
    expected = batches(loader.batches(1))
    assert batches(loader.batches(0)) != expected
    states = [generator.get_state() for generator in generators_of(data)]
    for workers in (0, 2):
        other = Loader(kind(made), 3, shuffle=True, seed=1, num_workers=workers)
        assert batches(other.batches(1, start=2)) == expected[2:]
        assert batches(other.batches(1)) == expected
    assert batches(loader.batches(1)) == expected
    assert all(same_state(one.get_state(), state) for one, state in zip(generators_of(data), states, strict=True))


@pytest.mark.second(4)
@pytest.mark.first(1)
@pytest.mark.parametrize("made", GENERATORS.values(), ids=GENERATORS)
@pytest.mark.parametrize("loader", [Loader, DataLoader])
def test_cuts_with_a_data_set_that_holds_one(
    loader: Any, made: Callable[[], Any], tmp_path: Path, assert_exact: AssertExact
) -> None:
    assert_exact(lambda: loader(Disturbed(made), 2, shuffle=True), tmp_path)


# NumPy's global generator is read and put back in place


def test_numpys_state_is_read_again_when_it_has_changed() -> None:
    generator = NumpyGlobal()
    seed_all(1)
    first = generator.get_state()
    assert generator.get_state() is first
    numpy.random.rand()
    second = generator.get_state()
    assert not same_state(first, second)
    generator.set_state(second)
    expected = numpy.random.rand(700).tolist()
    generator.set_state(second)
    assert numpy.random.rand(700).tolist() == expected
    generator.set_state(first)
    numpy.random.rand()
    assert same_state(generator.get_state(), second)


def test_half_a_pair_of_normal_numbers_is_neither_lost_nor_taken_over() -> None:
    generator = NumpyGlobal()
    seed_all(1)
    numpy.random.randn()
    with_half = generator.get_state()
    half = numpy.random.randn()
    without = generator.get_state()
    assert (with_half["has_gauss"], without["has_gauss"]) == (1, 0)
    following = numpy.random.randn()
    generator.set_state(with_half)
    assert numpy.random.randn() == half
    generator.set_state(without)
    again = generator.get_state()
    assert numpy.random.randn() == following  # leaves a half behind ...
    generator.set_state(again)
    assert numpy.random.randn() == following  # ... which is not taken for one of before
    generator.set_state(without)
    generator.get_state()
    generator.set_state(with_half)  # the same bytes as the state read last
    assert generator.get_state()["has_gauss"] == 1


def test_what_is_drawn_aside_leaves_no_trace() -> None:
    own: AnyGenerator | None = generator_of(numpy.random.default_rng(1))
    assert own is not None
    generators = [*HOST.values(), own]
    seed_all(1)
    numpy.random.randn()
    states = [one.get_state() for one in generators]
    for _ in range(2):
        with RandomAside(generators):
            seed_all(7, [own])
            numpy.random.randn()
            assert not any(same_state(one.get_state(), s) for one, s in zip(generators, states, strict=True))
        assert all(same_state(one.get_state(), s) for one, s in zip(generators, states, strict=True))


def forged(state: Any, position: int) -> Any:
    """A state of NumPy at another of its numbers."""
    if isinstance(state, tuple):
        return (*state[:2], position, *state[3:])
    if "buffer_pos" in state:
        return {**state, "buffer_pos": position}
    return {**state, "state": {**state["state"], "pos": position}}


@pytest.mark.parametrize("position", [-1, 10**9, -(10**9)])
@pytest.mark.parametrize("name", ["Philox", "MT19937", "RandomState", "of the process", "of the process, in short"])
def test_a_state_beyond_the_numbers_of_a_generator_is_refused(name: str, position: int) -> None:
    """NumPy takes it, and reads the memory there: a segmentation fault that a checkpoint of a stranger can cause."""
    if name.startswith("of the process"):
        generator, state = HOST["numpy"], numpy.random.get_state(legacy=name.endswith("short"))
    else:
        found = generator_of(GENERATORS[name]())
        assert found is not None
        generator, state = found, found.get_state()
    with pytest.raises(ValueError, match=rf"is at its number {position}, of"):
        generator.set_state(forged(state, position))
    generator.set_state(state)
    generator.draw()


KINDS: list[tuple[Any, str | None]] = [
    (torch.Generator(), "torch"),
    (numpy.random.RandomState(1), "numpy.RandomState"),
    (numpy.random.SeedSequence(1), "numpy.SeedSequence"),
    (numpy.random.default_rng(1), "PCG64"),
    (numpy.random.Generator(numpy.random.SFC64(1)), "SFC64"),
    (random.Random(1), "python"),
    (type("Own", (random.Random,), {})(1), None),
    (random.SystemRandom(), None),
    (numpy.random.PCG64(1), None),
    (3, None),
]


@pytest.mark.parametrize(("source", "kind"), KINDS, ids=range(len(KINDS)))
def test_generators_are_plain_data_in_a_state_dict(source: Any, kind: str | None) -> None:
    assert kind_of_generator(source) == kind
    state = {"held": [source], "steps": 3, "tensor": torch.ones(1)}
    described = without_generators(state)
    if kind is None:
        assert described is state
        return
    assert described["held"][0].keys() == {"graphtrain.generator", "state"} and described["tensor"] is state["tensor"]
    assert described["held"][0]["graphtrain.generator"] == kind
    draws = [generator_of(source).draw() for _ in range(2)]  # type: ignore[union-attr]
    asked: list[int] = []
    again = with_generators(described, lambda: asked.append(1) or {"held": [source]})
    assert again["held"][0] is source and asked == [1]
    for present in ({}, {"held": [random.SystemRandom()]}, {"held": 3}):
        made = with_generators(described, lambda present=present: present)["held"][0]
        assert made is not source and kind_of_generator(made) == kind
        assert [generator_of(made).draw() for _ in range(2)] == draws  # type: ignore[union-attr]


# ---- the generators of the process


def test_what_was_seeded_is_not_seeded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seed_everything(3)
    before = capture_random()
    assert seed_given() == 3
    seed_the_rest(5)
    assert str(capture_random()) == str(before)
    monkeypatch.setattr(random_of_state, "_AT_IMPORT", random_of_state._beginning())
    monkeypatch.setattr(torch, "initial_seed", lambda: 2**40)
    random_of_state._AT_IMPORT["torch"] = 2**40
    assert seed_given() is None
    seed_the_rest(5)
    after = [draw() for draw in (random.random, numpy.random.rand, lambda: float(torch.rand(())))]
    seed_all(5)
    assert after == [draw() for draw in (random.random, numpy.random.rand, lambda: float(torch.rand(())))]
    random_of_state._AT_IMPORT["torch"] = 7
    assert seed_given() == 2**40
    monkeypatch.setattr(torch, "initial_seed", lambda: 7)
    assert seed_given() == 7, "too small for one of the system's"
    monkeypatch.setattr(torch, "initial_seed", lambda: 2**63 + 1)
    assert seed_given() == 1
