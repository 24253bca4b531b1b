"""Thirty steps of a sharded model with everything at once, against a loop by hand and against one process."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from tests.ranks import sharded
from tests.ranks.processes import run_processes
from tests.ranks.sharded import BATCH, Case
from tests.ranks.test_sharded import assert_close, validated

STEPS = 30

# Every one clips, drops out, counts in a buffer, and has tied, frozen and unevenly divided weights: 33 rows.
CASES = [Case(), Case(every=3, mixed=True), Case(every=3, dtype=torch.bfloat16)]


def lasting(case: Case, ranks: int) -> Case:
    """As many epochs as have 30 steps."""
    batches = -(-case.samples // BATCH)
    steps = -(-batches // (case.every * ranks))
    return replace(case, epochs=-(-STEPS // steps))


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [2, 4])
def test_thirty_steps_equal_a_loop_by_hand(ranks: int) -> None:
    cases = [lasting(case, ranks) for case in CASES]
    for results in run_processes(ranks, sharded.both, cases, seconds=600):
        for case, (graph, hand, apart) in zip(cases, results, strict=True):
            assert graph == hand, (case, apart)


@pytest.mark.sweep
def test_thirty_steps_are_those_of_one_process() -> None:
    case = Case(dtype=torch.float64, dropout=0.0)
    alone = lasting(replace(case, every=4, shards=False), 1)
    ((weights, metrics),) = run_processes(1, sharded.trained, alone, validated, seconds=600)
    for ranks in (2, 4):
        divided = lasting(replace(case, every=4 // ranks), ranks)
        assert divided.epochs == alone.epochs
        for got, rows in run_processes(ranks, sharded.trained, divided, validated, seconds=600):
            assert_close(got, weights)
            for row, expected in itertools.zip_longest(rows, metrics, fillvalue={}):
                assert row == pytest.approx(expected, rel=1e-9)
