"""Promises 3 and 17: where triggers are due at every world size, and how often nodes run, counted ahead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch

from graphtrain import Graph, Loader, PlannedRun, Trainer, Trigger, node
from tests.fake_ranks import FakeRank, run_ranks
from tests.world import small_fit, world

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


def plain(*, end_after: str, **settings: Any) -> Graph:
    return small_fit(**settings).set("finish", after=end_after)


def samples(number: int) -> Loader:
    return Loader(torch.zeros(number, 1), batch_size=SIZE)


def ran(graph: Graph, number: int, **resources: Any) -> Trainer:
    it = world(
        graph,
        model=lambda: torch.nn.Linear(1, 1),
        optimizer="SGD",
        data=lambda: samples(number),
        training_step=lambda model, batch: model(batch).sum(),
        val_data=lambda: Loader(torch.zeros(3, 1), batch_size=1),
    )
    trainer = it.trainer(**resources)
    trainer.run()
    return trainer


def fired(world_size: int, amounts: list[str], after: str) -> list[Any]:
    """For every amount, (micro-batches, steps) wherever it was due; and the same of the end."""

    def program(ranks: FakeRank) -> list[Any]:
        graph = plain(accumulate=WINDOW // world_size, log_every="never", validate_every="never", end_after=after)
        lists: list[Any] = [[] for _ in amounts]
        for number, amount in enumerate(amounts):
            reads = {"fired": f"fired_{number}", "counts": ["next_batch.batches", "step.steps"]}
            graph = graph.insert(f"fire_{number}", Firing, at="decide", before="checkpoint", every=amount, reads=reads)
        trainer = ran(graph, BATCHES * SIZE - LAST, **{f"fired_{number}": each for number, each in enumerate(lists)})
        return [*lists, (trainer.progress["next_batch"]["batches"], trainer.progress["step"]["steps"])]

    of_ranks = run_ranks(world_size, program)
    assert all(each == of_ranks[0] for each in of_ranks)
    return of_ranks[0]


def rounds(world_size: int) -> Iterator[dict[str, Fraction]]:
    """What the clock has after every round."""
    for epoch in range(EPOCHS):
        first, second = range(world_size, WINDOW + 1, world_size), range(WINDOW + world_size, BATCHES, world_size)
        for batches in (*first, *second, BATCHES):
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


@pytest.mark.full
@pytest.mark.second(1)
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


# ---- counted ahead


# The batches of an epoch, `accumulate.every`, `finish.after`.
SETTINGS = [
    (23, 3, "3 epochs"),
    (23, 1, "31 batches"),
    (5, 4, "7 epochs"),
    (1, 2, "9 epochs"),
    (12, 5, "2.5 epochs"),
]


@pytest.mark.full
@pytest.mark.second(2)
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize(("batches", "every", "after"), SETTINGS)
def test_what_is_counted_ahead_is_what_runs(batches: int, every: int, after: str, world_size: int) -> None:
    graph, number = plain(accumulate=every, end_after=after), batches * SIZE - LAST

    def program(ranks: FakeRank) -> tuple[int, int]:
        return ran(graph, number).progress["step"]["runs"], PlannedRun(graph).steps(samples(number))

    for runs, planned in run_ranks(world_size, program):
        assert planned == runs
