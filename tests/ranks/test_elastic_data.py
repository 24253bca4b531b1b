"""An epoch that ranks leave at any place, and others continue: the same batches, each once."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from graphtrain.data.shares import Window, Windows
from graphtrain.kind import kind_of
from graphtrain.nodes.next_batch import NextBatch
from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.ranks import Ranks
from graphtrain.state.random import seed_everything
from tests.ranks.fake_ranks import run_ranks
from tests.ranks.test_data_of_ranks import BATCHES, DATA, SAMPLES, Made

WINDOW = 6


class Filled(Windows):
    """The window that a loop of the test fills."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def __call__(self) -> list[Window]:
        return [Window(WINDOW - self.count, WINDOW)]


@dataclass
class Saved:
    """What a checkpoint has of the data: the fields, the position, and the gradients in the window."""

    fields: dict[str, Any]
    position: dict[str, Any]
    count: int


Batches = list[tuple[int, int, Any]]
"""(epoch, number of the batch, the batch)"""


def go(ranks: Ranks | None, made: Made, saved: Saved | None, rounds: int) -> tuple[Any, Saved]:
    """So many rounds as this rank has them."""
    node = kind_of(NextBatch).new_instance()
    windows = Filled(saved.count if saved is not None else 0)
    seed_everything(17 + (ranks.rank if ranks is not None else 0))
    if saved is not None:
        vars(node).update(copy.deepcopy(saved.fields))
        node.load_state_dict(copy.deepcopy(saved.position))
    agreement = Agreement(ranks, Requests(True)) if ranks is not None else None
    common = {"seed": 3, "device": torch.device("cpu"), "saving": True, "notify": lambda line: None}
    node.setup(made(), ranks=agreement, windows=windows if ranks is not None else None, **common)
    batches: Batches = []
    for _ in range(rounds):
        batch, samples = node()
        assert samples == (0 if batch is None else len(batch))
        if batch is not None:
            batches.append((node.epoch, node.own_batch_index, batch.tolist()))
        windows.count += node.round_batches if ranks is not None else 1
        assert windows.count <= WINDOW
        if windows.count == WINDOW or node.last:
            windows.count = 0
        torch.rand(1 + (ranks.rank if ranks is not None else 0)), random.random()
    position = node.state_dict()
    fields = {name: copy.deepcopy(getattr(node, name)) for name in node_fields()}
    return batches, Saved(fields, copy.deepcopy(position), windows.count)


def node_fields() -> list[str]:
    return [name for name, declared in kind_of(NextBatch).fields.items() if declared.stored and name != "runs"]


def stretch(world_size: int, made: Made, saved: list[Saved] | None, rounds: int) -> tuple[Batches, list[Saved]]:
    """So many rounds of all ranks; one process has none."""
    one = None if saved is None else saved[0]
    if world_size == 1:
        batches, left = go(None, made, one, rounds)
        return batches, [left]

    def program(ranks: Ranks) -> tuple[Any, Saved]:
        is_same = saved is not None and len(saved) == world_size
        return go(ranks, made, saved[ranks.rank] if is_same and saved is not None else one, rounds)

    results = run_ranks(world_size, program)
    return sorted((each for batches, _ in results for each in batches), key=lambda each: each[:2]), [
        left for _, left in results
    ]


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("name", DATA)
def test_cut_anywhere_and_continued_by_others(name: str) -> None:
    """2 -> 2 -> 1 -> 4 -> 3, cut after every round of the first, and at places drawn for the others."""
    for cut in range(0, 14, 1 if name == "loader" else 5):
        choose = random.Random(cut)
        saved, seen, opened = None, [], {}
        for number, world_size in enumerate((2, 2, 1, 4, 3)):
            rounds = cut if not number else choose.randint(0, 7)
            before = seen[-1][0] if seen else -1
            batches, saved = stretch(world_size, DATA[name], saved, rounds) if rounds else ([], saved)
            for epoch, _, _ in batches:
                if epoch > before:
                    opened.setdefault(epoch, world_size)
            seen += batches
        assert [each[:2] for each in seen] == [divmod(number, BATCHES) for number in range(len(seen))]
        for epoch, world_size in opened.items():
            expected = [each for each in REFERENCES.of(name, world_size) if each[0] == epoch]
            part = [each for each in seen if each[0] == epoch]
            if len(part) == BATCHES and name not in ("list", "batch_sampler"):
                assert sorted(sample[0] for *_, batch in part for sample in batch) == [*range(SAMPLES)]
            if world_size > 1 or name in ("loader", "batch_sampler", "list"):
                assert part == expected[: len(part)], (name, cut, world_size)


class _References:
    """Runs that are never cut, by data and world size."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], Batches] = {}

    def of(self, name: str, world_size: int) -> Batches:
        key = name, world_size > 1
        if key not in self._known:
            ranks, rounds = (2, 40) if world_size > 1 else (1, 3 * BATCHES)
            self._known[key] = stretch(ranks, DATA[name], None, rounds)[0]
        return self._known[key]


REFERENCES = _References()
