"""How many batches an epoch has: at most a number, or a share of what the data has."""

from __future__ import annotations

from fractions import Fraction

from graphtrain.errors import DataError


def most_batches(limit: float | None, length: int | None) -> int | None:
    """The most batches of an epoch of data with this length; None for all.

    Arguments:
        limit: a whole number, or a share below 1, which is exact in decimal: 0.29 of 100 batches are 29.

    Raises:
        DataError: it is a share, and the data has no length, or too few batches to leave any.

    >>> most_batches(3, 10), most_batches(0.29, 100), most_batches(None, 10), most_batches(3, None)
    (3, 29, None, 3)
    """
    if limit is None or isinstance(limit, int):
        return limit
    hint = "set limit to a number of batches, as in limit = 1"
    if length is None:
        raise DataError(f"next_batch.limit = {limit} is a share of the batches, and the data has no length", hint)
    batches = int(Fraction(str(limit)) * length)
    if not batches and length:
        raise DataError(f"next_batch.limit = {limit} of {length} batches is less than one batch", hint)
    return batches
