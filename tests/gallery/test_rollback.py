"""Losses that are no numbers, or that are not there."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from graphtrain import UsageError
from graphtrain.nodes.rollback import Rollback
from graphtrain.program.history import History


class Nowhere(History):
    """Without a checkpoint to go back to."""

    def __init__(self) -> None:
        self.asked = 0

    def restore(self, to: str = "checkpoint", keep: Collection[str] | None = None, most: int | None = None) -> bool:
        self.asked += 1
        return False


def visits(*losses: float | None) -> tuple[float, int]:
    """The mean that is left, and how many of the losses were spikes."""
    rollback, history = Rollback(), Nowhere()
    rollback.mean, rollback.skips = 0.0, []
    rollback.setup(history)
    for loss in losses:
        rollback(loss)
    return rollback.mean, history.asked


def test_a_first_loss_that_is_no_number_is_no_mean() -> None:
    expected, _ = visits(1.0, 1.1, 3.0)
    assert visits(math.nan, 1.0, 1.1, 3.0) == (expected, 2)
    assert visits(math.inf, 1.0, 1.1, 3.0) == (expected, 1)


def test_a_loss_below_0_is_refused() -> None:
    """Twice a mean below 0 is further below 0: every loss would be a spike."""
    with pytest.raises(UsageError, match=r"rollback: the loss is -0\.25, and 2 times"):
        visits(1.0, 0.5, -0.25)
    assert visits(0.0, 1.0, 0.0, 1.1, 3.0)[1] == 1, "a loss of 0 is one"


def test_a_batch_that_is_skipped_counts_as_no_loss() -> None:
    assert visits(None, 1.0, None, 1.1, None, 3.0) == visits(1.0, 1.1, 3.0)
