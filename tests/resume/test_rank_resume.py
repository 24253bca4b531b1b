"""A run of several ranks, cut and resumed: bit for bit by as many, and up to the order of sums by any number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from graphtrain import Trainer
from graphtrain.errors import CheckpointError
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
        (1, [12, 47]),
        (3, [3, 12, 47]),
        *(pytest.param(size, TRANSITIONS, marks=pytest.mark.sweep) for size in (1, 3, 4)),
    ],
)
def test_another_number_of_ranks_trains_on_the_same_samples_to_the_same_weights(
    plain: list[End], trained: list[int], tmp_path: Path, world_size: int, cuts: Sequence[int]
) -> None:
    for number in cuts:
        run_dir, samples = tmp_path / str(number), list[int]()
        cut = run(2, run_dir, advance=number, is_plain=True, trained=samples)
        if cut[0].progress["accumulate"]["count"] or cut[0].position in ("train_batch", "validate/eval_batch"):
            with pytest.raises(CheckpointError, match="was made in the middle of a window or a batch by 2 processes"):
                run(world_size, run_dir, is_plain=True)
            continue
        ends = run(world_size, run_dir, is_plain=True, trained=samples)
        assert_equal(ends, plain, f"cut before {cut[0].position}")
        assert sorted(samples) == sorted(trained)


def test_what_another_number_of_ranks_changes_is_told_or_refused(tmp_path: Path) -> None:
    run(2, tmp_path / "between", advance=12)
    (end,) = run(1, tmp_path / "between")
    (line,) = (line for line in end.lines if line.startswith("resumed"))
    assert line.endswith("exact except for what changed: 1 process instead of 2 (other random numbers)")
    for name, advance in (("window", 6), ("batch", 3)):
        run(2, tmp_path / name, advance=advance)
        with pytest.raises(CheckpointError) as refused:
            run(1, tmp_path / name)
        assert str(refused.value) == (
            f"{tmp_path}/{name}/checkpoints/000001-step-0 was made in the middle of a window or a batch by 2 "
            "processes, and there is 1 process now\n  hint: resume with 2 processes, until there is a checkpoint "
            "between two windows, as the node `checkpoint` and a signal to several ranks make them"
        )


def assert_equal(ends: list[End], expected: list[End], message: str = "") -> None:
    """Equal up to the order of sums."""
    for end in ends:
        assert (end.weights - expected[0].weights).abs().max() < 1e-12, message
    assert len(ends[0].metrics) == len(expected[0].metrics), message
    for row, row_before in zip(ends[0].metrics, expected[0].metrics, strict=True):
        assert row == pytest.approx(row_before, rel=1e-12), message


@pytest.mark.full
def test_a_chain_of_world_sizes(plain: list[End], trained: list[int], tmp_path: Path) -> None:
    """Windows of 4 micro-batches, the last one of an epoch has 3; each life ends behind one."""
    samples: list[int] = []

    def to_the_end_of_a_window(trainer: Trainer, steps: int) -> None:
        trainer.run(until=f"{steps} steps")
        while trainer.progress["accumulate"]["count"]:
            trainer.advance()
        trainer.save()

    for steps, world_size in enumerate((2, 1, 3), 1):
        run(
            world_size,
            tmp_path,
            is_plain=True,
            trained=samples,
            act=lambda trainer, steps=steps: to_the_end_of_a_window(trainer, steps),
        )
    ends = run(4, tmp_path, is_plain=True, trained=samples)
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

    for number, world_size in ((12, 3), (12, 1)):
        run_dir, samples = tmp_path / str(world_size), list[int]()
        cut = run(2, run_dir, advance=number, is_plain=True, trained=samples)
        assert_equal(resumed(world_size, run_dir, samples), plain, f"cut before {cut[0].position}")
        assert sorted(samples) == sorted(trained)
