"""How many batches an epoch has: at most a number, or a share of what the data has, of one loader or of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import final

from graphtrain.errors import DataError, UsageError


@final
class BatchLimit:
    """The most batches of an epoch.

    Arguments:
        amount: a whole number, or a share below 1, which is exact in decimal: 0.29 of 100 batches are 29. None and
            infinity: all of them.

    Attributes:
        amount: the same; None for infinity.
        is_share: True for a share, which needs data with a length.

    Raises:
        UsageError: it is neither.

    >>> BatchLimit(3).of(10), BatchLimit(0.29).of(100), BatchLimit(None).of(10), BatchLimit(3).of(None)
    (3, 29, None, 3)
    """

    def __init__(self, amount: float | None) -> None:
        self.amount = None if amount == math.inf else amount
        self.is_share = isinstance(self.amount, float)
        if isinstance(self.amount, float) and not 0 < self.amount < 1:
            raise UsageError(
                f"next_batch.limit = {amount:g} is neither a whole number nor a share between 0 and 1",
                "write limit = 100 for 100 batches, limit = 0.25 for a quarter of them; leave it out for all",
            )

    def __bool__(self) -> bool:
        return self.amount is not None

    def __str__(self) -> str:
        return str(self.amount)

    def of(self, length: int | None) -> int | None:
        """The most batches of an epoch of data with this length; None for all.

        Raises:
            DataError: it is a share, and the data has no length, or too few batches to leave any.
        """
        if self.amount is None or isinstance(self.amount, int):
            return self.amount
        if length is None:
            raise DataError(
                f"next_batch.limit = {self} is a share of the batches, and the data has no length",
                "set limit to a number of batches, or give the data a `__len__`",
            )
        batches = int(Fraction(str(self.amount)) * length)
        if not batches and length:
            raise DataError(
                f"next_batch.limit = {self} of {length} batches is none",
                "set limit to a number of batches, as in limit = 1",
            )
        return batches


def combined_length(lengths: Sequence[int | None], combine: str) -> int | None:
    """The batches of an epoch of loaders with these numbers of batches; None if not known.

    >>> combined_length([3, 5], "cycle"), combined_length([3, 5], "shortest"), combined_length([3, None], "cycle")
    (5, 3, None)
    """
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return None
    return min(known) if combine == "shortest" else max(known)
