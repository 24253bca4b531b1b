"""The numbers of data that draws bit by bit: whose they are, and from when on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch

from graphtrain import Trainer, fit
from graphtrain.data.stream import Stream
from graphtrain.state.generators import HOST, generator_of
from graphtrain.state.random import capture_random, restore_random, seed_all

DRAW: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(())),
    "python": random.random,
    "numpy": lambda: float(numpy.random.rand()),
}


def drawing(names: list[str]) -> Iterator[list[float]]:
    """Items that draw from one generator each, or, for an empty name, from none."""
    for name in names:
        yield [DRAW[name]()] if name else []


def run(names: list[str], between: Callable[[int], Any]) -> tuple[list[Any], dict[str, Any]]:
    """The items of a stream with something else drawn after each, and where its generators were separated."""
    seed_all(1)
    separations: dict[str, Any] = {}
    items = []
    for number, item in enumerate(Stream(drawing(names), HOST, separations), 1):
        items.append(item)
        between(number)
    return items, separations


def nothing(number: int) -> None:
    """Nobody else draws."""


def everything(number: int) -> None:
    for draw in DRAW.values():
        draw()


@pytest.mark.parametrize("is_random", [False, True])
def test_it_is_reported_when_data_and_training_share_a_generator(is_random: bool) -> None:
    class Batches:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return (torch.rand(2, 1) for _ in range(3))

    said: list[str] = []
    model = torch.nn.Sequential(torch.nn.Dropout(0.5 if is_random else 0.0), torch.nn.Linear(1, 1))
    Trainer(
        fit(epochs=2), display=None, notify=said.append, seed=0, model=model, train_data=Batches(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1), training_step=lambda model, batch: model(batch).mean(),
    ).run()  # fmt: skip
    lines = [line for line in said if "a generator of its own" in line]
    assert len(lines) == is_random and all("the data, a Batches, draws random numbers" in line for line in lines)


MIXED = ["", "torch", "torch", "", "python", "numpy", "torch", "python", "numpy", "numpy"]


def test_as_long_as_nobody_else_draws_it_is_as_by_hand() -> None:
    seed_all(1)
    by_hand = list(drawing(MIXED))
    after = capture_random()
    items, separations = run(MIXED, nothing)
    assert items == by_hand
    assert separations == {}
    assert str(capture_random()) == str(after)


def test_numbers_drawn_in_the_first_item_only_are_as_by_hand() -> None:
    items, separations = run(["torch", "", "", ""], everything)
    seed_all(1)
    assert items[0] == [DRAW["torch"]()]
    assert separations == {}


@pytest.mark.parametrize("number", range(1, len(MIXED)))
def test_a_replay_comes_to_the_same_items_from_anywhere(number: int) -> None:
    items, separations = run(MIXED, everything)
    assert {name: record["number"] for name, record in separations.items()} == {"torch": 2, "python": 5, "numpy": 6}
    # A run cut after this item knows the separations up to it.
    so_far = {name: record for name, record in separations.items() if record["number"] <= number}
    states = []
    run(MIXED, lambda at: (everything(at), states.append(capture_random())))
    seed_all(1)
    again = Stream(drawing(MIXED), HOST, so_far)
    assert [next(again) for _ in range(number)] == items[:number]
    restore_random(states[number - 1])
    rest = []
    for item in again:
        rest.append(item)
        everything(0)
    assert rest == items[number:]
    assert so_far.keys() == separations.keys()
    assert {name: so_far[name]["number"] for name in so_far} == {
        name: separations[name]["number"] for name in separations
    }


def test_each_generator_stays_shared_until_it_matters() -> None:
    """Only torch's generator is drawn from in between, so only torch's is separated."""
    items, separations = run(MIXED, lambda number: torch.rand(2))
    assert separations.keys() == {"torch"}
    seed_all(1)
    python = [random.random(), random.random()]
    assert [items[4], items[7]] == [[python[0]], [python[1]]]


def test_whoever_trains_finds_the_generators_as_he_left_them() -> None:
    drawn: list[float] = []
    run(["torch"] * 6, lambda number: drawn.append(DRAW["torch"]()))
    # The first two items draw from the shared generator, the rest do not.
    seed_all(1)
    shared = [DRAW["torch"]() for _ in range(8)]
    assert drawn == [shared[1], *shared[3:]]


def test_separate_numbers_differ_from_the_shared_ones() -> None:
    drawn: list[float] = []
    for name, draw in DRAW.items():
        results, separations = run([name] * 20, lambda number, draw=draw: drawn.append(draw()))  # type: ignore[misc]
        assert separations
        items = [item for (item,) in results]
        assert len({*items, *drawn}) == len(items) + len(drawn)
        drawn.clear()


def test_separate_numbers_differ_from_epoch_to_epoch() -> None:
    seed_all(1)
    epochs = []
    for _ in range(2):
        items = []
        for item in Stream(drawing(["numpy"] * 6), HOST, {}):
            items.append(tuple(item))
            everything(0)
        epochs.append(items)
    assert not set(epochs[0]) & set(epochs[1])


def test_an_exception_leaves_the_generators_of_the_training() -> None:
    def failing() -> Iterator[float]:
        for _ in range(3):
            yield DRAW["torch"]()
        torch.rand(5)
        raise OSError("no more")

    stream = Stream(failing(), HOST, {})
    for _ in range(3):
        next(stream)
        torch.rand(())
    before = torch.get_rng_state()
    with pytest.raises(OSError, match="no more"):
        next(stream)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_that_another_loader_draws_from() -> None:
    source = numpy.random.default_rng(1)
    generator = generator_of(source)
    assert generator is not None
    separations: dict[str, Any] = {}
    stream = Stream((float(source.random()) for _ in range(5)), {"0": generator}, separations)
    begun = generator.get_state()
    items = []
    for number, item in enumerate(stream):
        items.append(item)
        source.random(number)  # after the first item nobody else draws yet
    assert separations["0"]["number"] == 3
    source.bit_generator.state = begun
    assert list(Stream((float(source.random()) for _ in range(5)), {"0": generator}, separations)) == items
