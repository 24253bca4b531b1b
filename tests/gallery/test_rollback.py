"""Losses that are NaN, or that are not there."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from graphtrain import NotFiniteError
from graphtrain.graphs.gallery.rollback.rollback import Rollback
from graphtrain.program.history import History


class Asked(History):
    """With a checkpoint to go back to, or without one."""

    def __init__(self, *, is_saved: bool) -> None:
        self.asked, self.is_saved = 0, is_saved

    def restore(self, to: str = "checkpoint", keep: Collection[str] | None = None, most: int | None = None) -> bool:
        self.asked += 1
        return self.is_saved

    def batches(self, count: int = 1) -> list[list[int]]:
        return [[0, 4]]


def visits(*losses: float | None, said: list[str] | None = None, is_saved: bool = True) -> tuple[float, int]:
    """The mean that is left, and how many of the losses were spikes."""
    rollback, history = Rollback(), Asked(is_saved=is_saved)
    rollback.warmup, rollback.skips, rollback.losses, rollback.reported = 2, [], 0, False
    rollback.mean = rollback.variance = 0.0
    rollback.setup(history, (said if said is not None else []).append)
    for loss in losses:
        rollback(loss)
    return rollback.mean, history.asked


def test_deviations_judge_losses_of_any_sign_and_level() -> None:
    noisy = [0.1, -0.1] * 20
    assert visits(*noisy)[1] == 0
    assert visits(*(1000 + loss for loss in noisy), 1000.9)[1] == 0
    assert visits(*noisy, 1.5)[1] == 1
    assert visits(*(1000 + loss for loss in noisy), 1001.5)[1] == 1


def test_a_spike_with_nowhere_to_go_back_to_is_reported_once() -> None:
    said: list[str] = []
    visits(1.0, 1.1, 30.0, 90.0, said=said, is_saved=False)
    (line,) = said
    assert line.startswith("rollback: the loss is 30 at batch 5 of epoch 1, and no checkpoint was made")


def test_a_loss_that_is_not_finite_with_nowhere_to_go_back_to_is_an_error() -> None:
    with pytest.raises(NotFiniteError, match="the loss is nan at batch 5 of epoch 1, and there is no checkpoint"):
        visits(1.0, math.nan, is_saved=False)
