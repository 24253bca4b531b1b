"""How many batches an epoch has with a limit, and with several loaders."""

from __future__ import annotations

import math

import pytest

from graphtrain.errors import DataError, UsageError
from graphtrain.kind.batch_limit import BatchLimit, combined_length


@pytest.mark.parametrize(
    ("amount", "text", "lengths"),
    [
        (None, "None", {None: None, 0: None, 10: None}),
        (math.inf, "None", {None: None, 10: None}),
        (3, "3", {None: 3, 0: 3, 2: 3, 10: 3}),
        (1, "1", {None: 1, 10: 1}),
        (0.29, "0.29", {0: 0, 4: 1, 10: 2, 100: 29}),  # exact: 0.29 * 100 is 28.999999999999996
        (0.5, "0.5", {0: 0, 2: 1, 3: 1}),
    ],
)
def test_a_limit_is_a_number_or_an_exact_share(
    amount: float | None, text: str, lengths: dict[int | None, int | None]
) -> None:
    limit = BatchLimit(amount)
    assert {length: limit.of(length) for length in lengths} == lengths
    assert (bool(limit), str(limit), limit.is_share) == (text != "None", text, "." in text)


@pytest.mark.parametrize("amount", [0.0, 1.0, 2.5, -0.5])
def test_a_limit_of_another_kind_is_refused(amount: float) -> None:
    with pytest.raises(UsageError) as caught:
        BatchLimit(amount)
    assert (caught.value.message, caught.value.hint) == (
        f"next_batch.limit = {amount:g} is neither a whole number nor a share between 0 and 1",
        "write limit = 100 for 100 batches, limit = 0.25 for a quarter of them; leave it out for all",
    )


@pytest.mark.parametrize(
    ("length", "message", "hint"),
    [
        (None, "next_batch.limit = 0.25 is a share of the batches, and the data has no length",
         "set limit to a number of batches, or give the data a `__len__`"),
        (3, "next_batch.limit = 0.25 of 3 batches is none", "set limit to a number of batches, as in limit = 1"),
    ],
)  # fmt: skip
def test_a_share_needs_enough_batches(length: int | None, message: str, hint: str) -> None:
    with pytest.raises(DataError) as caught:
        BatchLimit(0.25).of(length)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("lengths", "shortest", "longest"), [([3, 5], 3, 5), ([4], 4, 4), ([3, None], None, None), ([0, 2], 0, 2)]
)
def test_loaders_together_are_as_long_as_the_longest_or_the_shortest(
    lengths: list[int | None], shortest: int | None, longest: int | None
) -> None:
    assert combined_length(lengths, "shortest") == shortest
    assert combined_length(lengths, "cycle") == longest
