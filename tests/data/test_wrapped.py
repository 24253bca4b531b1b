"""Sources that wrap another, and loaders that are read in turn: each alone, without a node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import DataError, Loader
from graphtrain.data.source import Indexed, Ordered, Source, source_of
from graphtrain.data.together import InTurn
from graphtrain.data.wrapped import Common, Overfit
from graphtrain.kind.batch_limit import BatchLimit
from graphtrain.state.random import seed_everything


def read(data: Any) -> Source:
    return source_of(data, seed=3, saving=True, notify=lambda line: None)


def numbers(batches: Iterator[Any]) -> list[list[float]]:
    return [batch.flatten().tolist() for batch in batches]


def shuffled() -> Loader:
    return Loader(torch.arange(7.0), batch_size=2, shuffle=True)


# ---- the same batches in every epoch


def test_every_epoch_is_the_first() -> None:
    loader = shuffled()
    source = Overfit(Ordered(loader, 3), [loader], 2)
    first, other = (numbers(Ordered(shuffled(), 3).open(epoch).batches) for epoch in (0, 5))
    assert numbers(source.open(5).batches) == numbers(source.open(0).batches) == first != other
    assert source.open(5).length == 4


@pytest.mark.parametrize("drawn", range(5))
def test_it_is_continued_from_the_middle_of_the_first(drawn: int) -> None:
    loader = shuffled()
    source = Overfit(Ordered(loader, 3), [loader], 2)
    opened = source.open(5)
    again = min(drawn, 1)
    assert numbers(source.reopen(5, drawn, opened.state, again)) == numbers(opened.batches)[drawn:]
    assert numbers(iter(source.redrawn)) == numbers(source.open(5).batches)[drawn - again : drawn]


def test_what_it_wraps_answers_everything_else() -> None:
    source = Overfit(Indexed([torch.ones(1), torch.zeros(1)]), [[]], 2)
    assert (source.redraws, source.replays, source.has_length(), source.position()) == (True, False, True, {})
    assert source.select([1]) is not None
    assert numbers(source.open(2).batches) == [[0.0]]


def test_a_loader_that_shuffles_is_refused() -> None:
    loader = DataLoader(torch.arange(4.0), shuffle=True)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"overfit = 2: the data is a DataLoader with a RandomSampler"):
        Overfit(read([]), [[], loader], 2)


# ---- random numbers that are of no rank


class Drawn:
    """Draws every batch from the global generator."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.rand(1) for _ in range(3))


def test_ranks_draw_the_same_batches_and_their_generators_are_left_alone() -> None:
    found = []
    for rank in range(2):
        seed_everything(rank)
        expected = torch.rand(1)
        seed_everything(rank)
        data = Drawn()
        found.append(numbers(Common(read(data), data, 3).open(1).batches))
        assert torch.equal(torch.rand(1), expected)
    assert found[0] == found[1]


def test_they_are_drawn_again_from_the_middle() -> None:
    data = Drawn()
    source = Common(read(data), data, 3)
    opened = source.open(1)
    seen = numbers(itertools.islice(opened.batches, 1))
    seed_everything(9)
    rest = numbers(Common(read(data), data, 3).reopen(1, 1, opened.state))
    assert seen + rest == numbers(source.open(1).batches)


# ---- loaders in turn


def in_turn(**loaders: Any) -> InTurn:
    return InTurn(loaders, read)


def test_loaders_follow_one_another_and_begin_again() -> None:
    loaders = in_turn(clean=[1], noisy=[2], rare=[3])
    assert [loaders.after(name) for name in ("", "clean", "noisy", "rare", "gone")] == [
        "clean", "noisy", "rare", "clean", "clean",
    ]  # fmt: skip
    assert [loaders.ends_with(name, 1) for name in ("clean", "noisy", "rare")] == [False, False, True]
    with pytest.raises(DataError, match="the loader `rare` gave no batch"):
        loaders.ends_with("rare", 0)


def test_a_loader_has_one_source() -> None:
    loaders = in_turn(clean=[torch.ones(1)], noisy=[])
    assert loaders.source("clean") is loaders.source("clean")
    assert numbers(loaders.source("clean").open(0).batches) == [[1.0]]
    with pytest.raises(DataError, match="saved in the loader `rare`, and now there are clean, noisy"):
        loaders.source("rare")


@pytest.mark.parametrize(("limit", "length"), [(None, 7), (3, 5), (0.5, 3), (9, 7)])
def test_their_length_is_that_of_all_each_with_the_limit(limit: float | None, length: int) -> None:
    assert in_turn(clean=range(5), noisy=range(2)).length(BatchLimit(limit)) == length


def test_without_the_length_of_one_there_is_none() -> None:
    assert in_turn(clean=[1, 2], noisy=iter([])).length(BatchLimit(None)) == 0


class Keeps:
    """Keeps its own position."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[int]:
        while self.number < 3:
            self.number += 1
            yield self.number - 1
        self.number = 0

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def test_their_position_is_that_of_those_that_are_not_read_now() -> None:
    loaders = in_turn(clean=Keeps(), noisy=Keeps(), rare=[1])
    loaders.positions["noisy"] = {"data": {"number": 1}}  # loaded, and not taken so far
    batches = loaders.source("clean").open(0).batches
    next(batches), next(batches)
    assert loaders.position("") == {"clean": {"data": {"number": 2}}, "noisy": {"data": {"number": 1}}}
    assert loaders.position("clean") == {"noisy": {"data": {"number": 1}}}
