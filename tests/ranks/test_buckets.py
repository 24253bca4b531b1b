"""Gradients in buckets: their order, their types, and parameters without a gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain.errors import UsageError
from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.ranks import Alone, Ranks
from graphtrain.ranks.buckets import CARRIED_BYTES, Joined, buckets_of, exchange_tensors
from tests.ranks.fake_ranks import run_ranks
from tests.ranks.test_failures import Noting


def agreement_of(ranks: Ranks) -> Agreement:
    return Agreement(ranks, Requests(agrees=True))


def test_buckets_follow_the_order_of_parameters_and_keep_types_apart() -> None:
    tensors = [torch.zeros(4), torch.zeros(2, dtype=torch.float64), *map(torch.zeros, (3, 9, 1, 7))]
    buckets = [[tensor.numel() for tensor in bucket] for bucket in buckets_of(tensors, bucket_bytes=32)]
    assert buckets == [[4, 3], [9], [2], [1, 7]]


@pytest.mark.parametrize(
    ("size", "most", "packed"), [(8, 8, 8), (8, 7, 0), (8, 0, 0), (0, 8, 0), (CARRIED_BYTES + 1, 0, 0)]
)
def test_what_has_room_is_packed_and_nothing_larger(size: int, most: int, packed: int) -> None:
    assert len(Joined([torch.zeros(size, dtype=torch.uint8)]).packed(most)) == packed
    assert not Joined([torch.zeros(8, device="meta")]).packed(CARRIED_BYTES), "only what is on the CPU"


def test_a_gradient_that_some_ranks_lack_counts_as_zeros_and_one_that_all_lack_stays_absent() -> None:
    def program(ranks: Ranks) -> list[Any]:
        parameters = [torch.nn.Parameter(torch.zeros(2, 3).t()), torch.nn.Parameter(torch.zeros(2)), torch.zeros(1)]
        parameters.append(torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)))
        parameters[0].grad = torch.full((3, 2), float(ranks.rank + 1))
        if ranks.rank == 1:
            parameters[1].grad = torch.tensor([5.0, 7.0])
        parameters[3].grad = torch.ones(3, dtype=torch.bfloat16)
        agreement_of(ranks).exchange(parameters)
        return [None if parameter.grad is None else parameter.grad.tolist() for parameter in parameters]

    for gradients in run_ranks(3, program):
        assert gradients == [[[6.0, 6.0]] * 3, [5.0, 7.0], None, [3.0, 3.0, 3.0]]


@pytest.mark.parametrize(
    ("shape", "is_turned", "is_large"),
    [((512, 512), False, True), ((512, 512), True, False), ((511, 512), False, False), ((3,), False, False)],
)
def test_contiguous_gradients_of_a_megabyte_are_passed_as_they_are(
    shape: tuple[int, ...], is_turned: bool, is_large: bool
) -> None:
    """All others in one bucket, with those that are missing."""
    ranks = Noting()
    values = torch.zeros(shape)
    parameters = [torch.nn.Parameter(values.t() if is_turned else values), torch.nn.Parameter(torch.zeros(2))]
    gradient = parameters[0].grad = torch.ones_like(parameters[0])
    exchange_tensors(ranks, parameters)
    assert [tensor is gradient for tensor in ranks.exchanged] == ([True, False] if is_large else [False])
    assert ranks.exchanged[-1].numel() == 2 + (0 if is_large else gradient.numel())


def test_a_sparse_gradient_is_refused() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, 2))
    parameter.grad = torch.zeros(3, 2).to_sparse()
    with pytest.raises(UsageError) as refused:
        exchange_tensors(Noting(), [parameter])
    assert str(refused.value) == (
        "a parameter of shape [3, 2] has a sparse gradient; ranks sum only dense ones\n"
        "  hint: make it dense, as with Embedding(..., sparse=False)"
    )


def test_large_gradients_of_any_layout_are_summed_where_they_are() -> None:
    def program(ranks: Ranks) -> list[float]:
        parameters = [torch.nn.Parameter(torch.zeros(600, 500)), torch.nn.Parameter(torch.zeros(3))]
        first = torch.full((500, 600), 1.0).t() if ranks.rank else torch.full((600, 500), 1.0)
        parameters[0].grad, parameters[1].grad = first, torch.ones(3)
        agreement_of(ranks).exchange(parameters)
        assert parameters[0].grad is first
        return [float(parameter.grad.sum()) for parameter in parameters if parameter.grad is not None]

    assert run_ranks(2, program) == [[600_000.0, 6.0]] * 2


def test_a_single_process_exchanges_nothing() -> None:
    alone, values = Alone(), torch.ones(2)
    alone.begin_exchange([values])()
    alone.publish("key", b"value")
    assert (values.tolist(), alone.read("key"), alone.claim("key"), alone.ended()) == ([1.0, 1.0], None, True, [])


@pytest.mark.parametrize("value", [{"loss": [1.5, 3]}, list(range(5000)), "text", None])
def test_plain_data_of_any_size_reaches_all_ranks_in_their_order(value: Any) -> None:
    def program(ranks: Ranks) -> list[Any]:
        return agreement_of(ranks).gather([ranks.rank, value if ranks.rank != 1 else None])

    for gathered in run_ranks(3, program):
        assert gathered == [[0, value], [1, None], [2, value]]
