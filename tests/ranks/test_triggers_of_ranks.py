"""Where triggers are due, at every world size: steps and whole epochs at one place, others where a round gets there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch

from graphtrain import Graph, Loader, Trainer, Trigger, node
from graphtrain.data.shares import Window, planned_rounds
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks

BATCHES, EPOCHS, SIZE, WINDOW = 23, 3, 2, 12
LAST = 1  # the samples in the last batch of an epoch


@node(observer=True)
class Firing:
    """Note where it is due."""

    every: Trigger = Trigger("1 steps")

    def setup(self, fired: list[tuple[int, int]]) -> None:
        self._fired = fired

    def __call__(self, counts: tuple[int, int]) -> None:
        self._fired.append(counts)


def fired(world_size: int, amounts: list[str], after: str) -> list[Any]:
    """For every amount, (micro-batches, steps) wherever it was due; and the same of the end."""

    def program(ranks: Ranks) -> list[Any]:
        model = torch.nn.Linear(1, 1)
        graph = Graph.load("fit").set("accumulate", every=WINDOW // world_size).set("finish", after=after)
        graph = graph.set("checkpoint", every="never").set("log", every="never").set("validate", every="never")
        lists: list[Any] = [[] for _ in amounts]
        for number, amount in enumerate(amounts):
            reads = {"fired": f"fired_{number}", "counts": ["next_batch.batches", "step.steps"]}
            graph = graph.insert(f"fire_{number}", Firing, at="decide", before="checkpoint", every=amount, reads=reads)
        trainer = Trainer(
            graph,
            seed=0,
            display=None,
            notify=lambda line: None,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
            train_data=Loader(torch.zeros(BATCHES * SIZE - LAST, 1), batch_size=SIZE),
            training_step=lambda model, batch: model(batch).sum(),
            **{f"fired_{number}": values for number, values in enumerate(lists)},
        )
        trainer.run()
        return [*lists, (trainer.progress["next_batch"]["batches"], trainer.progress["step"]["steps"])]

    of_ranks = run_ranks(world_size, program)
    assert all(each == of_ranks[0] for each in of_ranks)
    return of_ranks[0]


def rounds(world_size: int) -> Iterator[dict[str, Fraction]]:
    """What the clock has after every round."""
    for epoch in range(EPOCHS):
        for first, size in planned_rounds(0, BATCHES, world_size, [Window(WINDOW, WINDOW)]):
            batches = first + size
            yield {
                "epochs": epoch + Fraction(batches, BATCHES),
                "epoch_batches": Fraction(batches),
                "batches": Fraction(epoch * BATCHES + batches),
                "samples": Fraction((epoch * BATCHES + batches) * SIZE - LAST * (epoch + batches // BATCHES)),
            }


def expected(world_size: int, amount: str) -> list[int]:
    """The micro-batches after the rounds in which a clock passes a multiple of an amount."""
    number, unit = amount.split()
    places, before = [], Fraction(0)
    for clock in rounds(world_size):
        if unit == "epoch_batches" and clock[unit] <= before:
            before = Fraction(0)
        if math.floor(clock[unit] / Fraction(number)) > math.floor(before / Fraction(number)):
            places.append(int(clock["batches"]))
        before = clock[unit]
    return places


AT_ONE_PLACE = ["1 steps", "3 steps", "1 epochs", "2 epochs"]
WHERE_REACHED = ["5 batches", "24 batches", "7 samples", "0.5 epochs", "0.3 epochs", "1.5 epochs", "9 epoch_batches"]


@pytest.mark.first(1)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_where_amounts_are_due(world_size: int) -> None:
    *lists, end = fired(world_size, AT_ONE_PLACE + WHERE_REACHED, f"{EPOCHS} epochs")
    assert end == (EPOCHS * BATCHES, 2 * EPOCHS)
    by_amount = dict(zip(AT_ONE_PLACE + WHERE_REACHED, lists, strict=True))
    steps = [epoch * BATCHES + batches for epoch in range(EPOCHS) for batches in (WINDOW, BATCHES)]
    assert by_amount["1 steps"] == [(batches, number) for number, batches in enumerate(steps, 1)]
    assert by_amount["3 steps"] == [(BATCHES + WINDOW, 3), (3 * BATCHES, 6)]
    assert by_amount["1 epochs"] == [(BATCHES * epoch, 2 * epoch) for epoch in (1, 2, 3)]
    assert by_amount["2 epochs"] == [(2 * BATCHES, 4)]
    for amount in WHERE_REACHED:
        assert [batches for batches, _ in by_amount[amount]] == expected(world_size, amount), amount


@pytest.mark.second(1)
@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("after", "ends"),
    [
        ("3 steps", [(35, 3)] * 4),
        ("2 epochs", [(46, 4)] * 4),
        ("25 batches", [(25, 3), (25, 3), (26, 3), (27, 3)]),
        ("21 samples", [(11, 1), (12, 1), (12, 1), (12, 1)]),
    ],
)
def test_where_a_run_ends(after: str, ends: list[tuple[int, int]]) -> None:
    assert [fired(world_size, [], after)[-1] for world_size in (1, 2, 3, 4)] == ends


@pytest.mark.full
def test_a_part_of_the_run_is_a_part_of_its_steps() -> None:
    for world_size in (1, 2, 3, 4):
        (places, _) = fired(world_size, ["0.5 run"], "2 epochs")
        assert places == [(BATCHES, 2), (2 * BATCHES, 4)], world_size
