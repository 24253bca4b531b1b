"""Models that `fully_shard` has sharded: as by a loop by hand, cut anywhere, on any number of ranks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphtrain import Graph
from graphtrain.storage.pieces import Sharding
from tests.devices import DEVICES
from tests.ranks import sharded
from tests.ranks.processes import run_processes
from tests.ranks.sharded import Case

# ---- parts, without processes


@pytest.mark.parametrize(("rows", "ranks", "dimension"), [(33, 2, 0), (33, 4, 0), (2, 4, 0), (0, 3, 0), (7, 3, 1)])
def test_the_parts_of_ranks_are_the_chunks_of_torch(rows: int, ranks: int, dimension: int) -> None:
    whole = torch.arange(float(rows * 5)).view(rows, 5) if not dimension else torch.arange(rows * 5.0).view(5, rows)
    held = Sharding(tuple(whole.shape), tuple(whole.stride()), dimension, (ranks,))
    chunks = list(torch.chunk(whole, ranks, dimension))
    empty = whole.narrow(dimension, 0, 0)
    parts = [held.part(whole, rank) for rank in range(ranks)]
    for part, chunk in itertools.zip_longest(parts, chunks, fillvalue=empty):
        assert torch.equal(part, chunk)
    assert torch.equal(held.joined(parts), whole)
    with pytest.raises(ValueError, match="its parts make a tensor of shape"):
        held.joined([*parts, torch.ones(1, 5) if not dimension else torch.ones(5, 1)])


# ---- processes


EXACT = Case(every=2, dtype=torch.float64, dropout=0.0)

CASES = [Case(), Case(every=3), Case(every=3, mixed=True), Case(mixed=True, foreach=False)]


@pytest.mark.full
def test_two_ranks_equal_a_loop_by_hand() -> None:
    for results in run_processes(2, sharded.both, CASES):
        for case, (graph, hand, apart) in zip(CASES, results, strict=True):
            assert graph == hand, (case, apart)


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [3, 4])
def test_more_ranks_equal_a_loop_by_hand(ranks: int) -> None:
    cases = [*CASES, *([Case(every=3, replicas=2)] if ranks == 4 else [])]
    for results in run_processes(ranks, sharded.both, cases):
        for case, (graph, hand, apart) in zip(cases, results, strict=True):
            assert graph == hand, (case, apart)


def validated(graph: Graph) -> Graph:
    return graph.set("validate", every="1 epochs").set("log", every="1 steps")


def averaged(graph: Graph) -> Graph:
    return validated(graph).overlay("ema")


def clipped(graph: Graph) -> Graph:
    graph = graph.set("clip", max_value=0.01)
    return graph.overlay("check_finite", "gradient_norm").set("log", every="1 steps")


CHANGES = [(EXACT, validated), (replace(EXACT, average=True), averaged), (EXACT, clipped)]


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize(("case", "edit"), CHANGES)
def test_two_ranks_train_as_one_process(case: Case, edit: sharded.Edit) -> None:
    ((weights, metrics),) = run_processes(1, sharded.trained, replace(case, every=4, shards=False), edit)
    for got, rows in run_processes(2, sharded.trained, case, edit):
        assert_close(got, weights)
        assert [row.keys() for row in rows] == [row.keys() for row in metrics]
        for row, expected in zip(rows, metrics, strict=True):
            assert row == pytest.approx(expected, rel=1e-9)


def assert_close(got: sharded.Parameters, expected: sharded.Parameters) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        wanted = torch.tensor(values, dtype=torch.float64)
        assert torch.allclose(torch.tensor(got[name], dtype=torch.float64), wanted, rtol=0, atol=1e-12), name


SHORT = Case(every=2, samples=28, epochs=1)


@pytest.mark.full
def test_a_cut_in_a_window_leads_to_the_same_bits(tmp_path: Path) -> None:
    for wrong in run_processes(2, sharded.cut_everywhere, SHORT, tmp_path, range(7, 24, 10)):
        assert not wrong


ALONE = Case(every=2, samples=12, epochs=1)  # a window, and a short one
OF_A_DEVICE = [ALONE, replace(ALONE, mixed=True), replace(ALONE, offload=True)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", OF_A_DEVICE, ids=["float32", "bfloat16", "offload"])
def test_one_rank_on_a_device_equals_a_loop_by_hand_and_every_cut_leads_to_the_same_bits(
    case: Case, device: str, tmp_path: Path
) -> None:
    (results,) = run_processes(1, sharded.on_a_device, [replace(case, device=device)], tmp_path, validated)
    for done, is_as_by_hand, apart, count, wrong in results:
        assert is_as_by_hand, (done, apart)
        assert count > 20
        assert not wrong, done


BATCHES_OF_TWO_WINDOWS = {2: 7, 4: 13}  # the second one is short


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_cut_leads_to_the_same_bits(tmp_path: Path, ranks: int) -> None:
    case = Case(every=2, samples=4 * BATCHES_OF_TWO_WINDOWS[ranks], epochs=1)
    for wrong in run_processes(ranks, sharded.cut_everywhere, case, tmp_path, None, validated, seconds=1800):
        assert not wrong


def sam(graph: Graph) -> Graph:
    return graph.overlay("sam")


@pytest.mark.full
def test_a_kind_that_runs_backward_in_its_own_way_is_refused() -> None:
    for message in run_processes(2, sharded.refusal, Case(), sam):
        assert message.startswith("`train_batch` runs backward over a sharded model, and its kind `sam_batch`")


@pytest.mark.full
def test_a_rank_that_fails_within_a_forward_pass_is_named() -> None:
    first, _ = run_processes(2, sharded.failing, "raises")
    assert first.startswith("rank 1 failed in `train_batch` at step 2"), first
    assert "ValueError: a bad batch" in first
