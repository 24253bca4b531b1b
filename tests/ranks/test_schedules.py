"""The real engine on several ranks, in any order of theirs: one path, one outcome, every gradient once."""

from __future__ import annotations

import random

import pytest

from tests.ranks.schedules import Plan, run_plan


def check(seed: int) -> None:
    choose = random.Random(seed)
    plan, world_size = Plan.drawn(choose), choose.randint(2, 4)
    ends = run_plan(plan, world_size, seed, requests=choose.choice([0.0, 0.02, 0.2]))
    first = ends[0]
    for end in ends[1:]:
        assert end.edges == first.edges
        assert end.outcomes == first.outcomes
        assert end.position == first.position == "end"
        assert end.counts == first.counts
        assert end.metrics == first.metrics
        for path, fields in first.progress.items():
            assert end.progress[path] == fields, path
    alone = run_plan(plan, world_size, seed)[0]
    assert first.counts == alone.counts, "what is asked of a rank changes what is trained"
    assert first.metrics == alone.metrics
    batches = first.progress["next_batch"]["batches"]
    epochs, rest = divmod(batches, plan.batches)
    expected = [float(epochs + (number < rest)) for number in range(plan.batches)]
    assert first.counts == expected, "every gradient is in one step"


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_any_order_of_ranks_and_requests(part: int) -> None:
    for seed in range(part * 4, part * 4 + 4):
        check(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(4))
def test_two_thousand_orders(part: int) -> None:
    for seed in range(1000 + part * 500, 1000 + part * 500 + 500):
        check(seed)
