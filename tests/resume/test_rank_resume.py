"""A run of several ranks, cut and resumed: bit for bit by as many, and up to the order of sums by any number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph
from graphtrain.errors import CheckpointError, NotFiniteError
from graphtrain.ranks import current_ranks
from tests.resume.rank_runs import End, run

# All of the first epoch: full windows, a short one, and a validation, with one at its end.
TRANSITIONS = range(1, 62)
# Where a batch is alive, in a window, before exchange, step and zero_grad, and in the validation.
SOME = (3, 6, 9, 10, 11, 47)


@pytest.fixture(scope="module")
def trained() -> list[int]:
    """The samples that the whole run trains on."""
    return []


@pytest.fixture(scope="module")
def whole() -> list[End]:
    return run(2, None)


@pytest.fixture(scope="module")
def plain(trained: list[int]) -> list[End]:
    return run(2, None, is_plain=True, trained=trained)


@pytest.mark.sweep
@pytest.mark.parametrize("cuts", [SOME, pytest.param(TRANSITIONS, marks=pytest.mark.sweep)], ids=["some", "all"])
def test_wherever_it_is_cut_it_is_exact(whole: list[End], tmp_path: Path, cuts: Sequence[int]) -> None:
    for number in cuts:
        run_dir = tmp_path / str(number)
        cut = run(2, run_dir, advance=number, seed=number)
        ends = run(2, run_dir, seed=-number)
        assert [end.digest for end in ends] == [end.digest for end in whole], f"cut before {cut[0].position}"
        assert ends[0].metrics == whole[0].metrics


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("world_size", "cuts"),
    [
        (1, [6]),
        (3, [10]),
        *(pytest.param(size, cuts, marks=pytest.mark.full) for size, cuts in ((1, SOME[1:]), (3, SOME[:3]))),
        *(pytest.param(size, TRANSITIONS, marks=pytest.mark.sweep) for size in (1, 3, 4)),
    ],
)
def test_another_number_of_ranks_trains_on_the_same_samples_to_the_same_weights(
    plain: list[End], trained: list[int], tmp_path: Path, world_size: int, cuts: Sequence[int]
) -> None:
    for number in cuts:
        run_dir, samples = tmp_path / str(number), list[int]()
        cut = run(2, run_dir, advance=number, is_plain=True, trained=samples)
        if cut[0].position in ("train_batch", "validate/eval_batch") and world_size == 1:
            continue  # there is a batch for each of two ranks
        ends = run(world_size, run_dir, is_plain=True, trained=samples)
        assert_equal(ends, plain, f"cut before {cut[0].position}")
        assert sorted(samples) == sorted(trained)


def test_what_another_number_of_ranks_changes_is_told_or_refused(tmp_path: Path) -> None:
    run(2, tmp_path / "window", advance=6)
    (end,) = run(1, tmp_path / "window")
    (line,) = (line for line in end.lines if line.startswith("resumed"))
    assert line.endswith(
        "exact except for what changed: 1 process instead of 2 (other random numbers, `model.1.running_mean`, "
        "`model.1.running_var` of rank 0, gradients of the open window are summed)"
    )
    run(2, tmp_path / "batch", advance=3)
    with pytest.raises(CheckpointError) as refused:
        run(1, tmp_path / "batch")
    assert str(refused.value) == (
        f"{tmp_path}/batch/checkpoints/000001-step-0 was made while 2 ranks had a batch each in `batch`, but there are "
        "1 process now\n"
        "  hint: resume with 2 processes or more, or from a checkpoint that was made between two batches"
    )


def test_a_loss_that_no_rank_has_read_yet_is_that_of_the_first(tmp_path: Path) -> None:
    offset = {"first": math.nan}

    def training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return model(batch[0]).square().mean() + (offset.get("first", 0.0) if current_ranks().rank == 0 else 0.0)

    def checked(graph: Graph) -> Graph:
        return graph.overlay("check_finite")

    run(2, tmp_path, advance=6, graph=checked, is_plain=True, training_step=training_step)
    offset.clear()
    with pytest.raises(NotFiniteError, match=r"at batch 1 of epoch 1, after step 0, on rank 0\n"):
        run(3, tmp_path, graph=checked, is_plain=True, training_step=training_step)


def assert_equal(ends: list[End], expected: list[End], message: str = "") -> None:
    """Equal up to the order of sums."""
    for end in ends:
        assert (end.weights - expected[0].weights).abs().max() < 1e-12, message
    assert len(ends[0].metrics) == len(expected[0].metrics), message
    for row, row_before in zip(ends[0].metrics, expected[0].metrics, strict=True):
        assert row == pytest.approx(row_before, rel=1e-12), message


@pytest.mark.full
def test_a_chain_of_world_sizes_in_open_windows(plain: list[End], trained: list[int], tmp_path: Path) -> None:
    """Windows of 4 micro-batches, the last one of an epoch has 3: each life ends in one, or in the next epoch."""
    samples: list[int] = []
    consumed = []
    for world_size, until in [(2, 2), (1, 3), (3, 5), (1, 9), (4, 10), (2, 13)]:
        lives = run(
            world_size,
            tmp_path,
            is_plain=True,
            trained=samples,
            act=lambda trainer, until=until: trainer.run(until=f"{until} batches"),
        )
        consumed.append((lives[0].progress["next_batch"]["batches"], lives[0].progress["accumulate"]["count"]))
    assert consumed == [(2, 2), (3, 3), (7, 3), (9, 1), (11, 0), (13, 2)]
    ends = run(3, tmp_path, is_plain=True, trained=samples)
    assert_equal(ends, plain)
    assert sorted(samples) == sorted(trained)


@pytest.mark.sweep
def test_nodes_may_be_renamed_where_the_number_of_ranks_changes(
    plain: list[End], trained: list[int], tmp_path: Path
) -> None:
    rename = {"next_batch": "fetch", "accumulate": "gather"}

    def resumed(world_size: int, run_dir: Path, samples: list[int]) -> list[End]:
        return run(
            world_size,
            run_dir,
            is_plain=True,
            trained=samples,
            graph=lambda graph: graph.rename("next_batch", "fetch").rename("accumulate", "gather"),
            act=lambda trainer: trainer.run(rename=rename),
        )

    for number, world_size in ((3, 3), (6, 1), (10, 1), (11, 3)):
        run_dir, samples = tmp_path / str(number), list[int]()
        cut = run(2, run_dir, advance=number, is_plain=True, trained=samples)
        if cut[0].position == "train_batch":
            with pytest.raises(CheckpointError, match="while 2 ranks had a batch each in `batch`"):
                resumed(1, run_dir, samples)
        assert_equal(resumed(world_size, run_dir, samples), plain, f"cut before {cut[0].position}")
        assert sorted(samples) == sorted(trained)
