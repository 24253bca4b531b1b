"""How many batches an epoch has: at most a number, or a share of what the data has, of one loader or of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from graphtrain.errors import DataError, UsageError


def refuse_batch_limit(limit: float | None) -> None:
    """Raise a UsageError if it is neither a whole number nor a share of the batches."""
    if isinstance(limit, float) and limit != math.inf and not 0 < limit < 1:
        raise UsageError(
            f"next_batch.limit = {limit:g} is neither a whole number nor a share between 0 and 1",
            "write limit = 100 for 100 batches, limit = 0.25 for a quarter of them; leave it out for all",
        )


def most_batches(limit: float | None, length: int | None) -> int | None:
    """The most batches of an epoch of data with this length; None for all.

    Arguments:
        limit: a whole number, or a share below 1, which is exact in decimal: 0.29 of 100 batches are 29. None and
            infinity: all of them.

    Raises:
        UsageError: the limit is neither.
        DataError: it is a share, and the data has no length, or too few batches to leave any.

    >>> most_batches(3, 10), most_batches(0.29, 100), most_batches(None, 10), most_batches(3, None)
    (3, 29, None, 3)
    """
    refuse_batch_limit(limit)
    if limit is None or limit == math.inf or isinstance(limit, int):
        return limit if isinstance(limit, int) else None
    if length is None:
        raise DataError(
            f"next_batch.limit = {limit} is a share of the batches, and the data has no length",
            "set limit to a number of batches, or give the data a `__len__`",
        )
    batches = int(Fraction(str(limit)) * length)
    if not batches and length:
        message = f"next_batch.limit = {limit} of {length} batches is none"
        raise DataError(message, "set limit to a number of batches, as in limit = 1")
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
