"""Promise 17: what ranks sum and gather: gradients of any type and layout, buffers of rank 0, plain data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graphtrain.nodes.exchange import Exchange
from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.ranks import buckets
from graphtrain.ranks.buckets import GradientSums
from tests.fake_ranks import FakeRank, run_ranks
from tests.ranks.test_joining import Noting


def test_small_gradients_are_summed_again_if_there_are_others_than_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the buckets of an exchange that nothing has preceded; the copies that were summed before are dropped."""
    monkeypatch.setattr(buckets, "RECORD_BYTES", 0)
    ranks = Noting()
    first, second, third = (nn.Parameter(torch.zeros(size)) for size in (2, 3, 4))
    for parameter in (first, second):
        parameter.grad = torch.ones_like(parameter)
    for others, sizes in (([], []), ([third], [2 + 3 + 4])):
        ranks.exchanged.clear()
        early = GradientSums(ranks, [first, second, third], [first, second])
        early.within(lambda: None)
        assert early.count == 1 and [len(values) for values in ranks.exchanged] == [2 + 3]
        other = {"present": bytes([1, 1, bool(others)])}
        summed = early.exchange({}, lambda other=other, **record: [record, {**record, **other}])
        assert summed == [first, second, *others]
        assert [len(values) for values in ranks.exchanged[1:]] == sizes
    early = GradientSums(ranks, [first, second, third], [first])
    early.within(lambda: None)
    assert not early.count, "this rank has more itself"


def test_what_is_summed_early_of_a_large_gradient_of_another_layout_is_put_into_it() -> None:
    ranks, turned = Noting(), nn.Parameter(torch.zeros(600, 500))
    turned.grad = torch.zeros(500, 600).t()
    early = GradientSums(ranks, [turned], [turned])
    early.within(lambda: None)
    ranks.exchanged[0].fill_(7.0)
    early.exchange({}, lambda **record: [record, record])
    assert bool((turned.grad == 7.0).all())


def test_a_gradient_that_some_ranks_lack_counts_as_zeros_and_one_that_all_lack_stays_absent() -> None:
    def program(ranks: FakeRank) -> list[Any]:
        parameters = [nn.Parameter(torch.zeros(2, 3).t()), nn.Parameter(torch.zeros(2)), torch.zeros(1)]
        parameters.append(nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)))
        parameters[0].grad = torch.full((3, 2), float(ranks.rank + 1))
        if ranks.rank == 1:
            parameters[1].grad = torch.tensor([5.0, 7.0])
        parameters[3].grad = torch.ones(3, dtype=torch.bfloat16)
        Agreement(ranks, Requests()).exchange(parameters)
        return [None if parameter.grad is None else parameter.grad.tolist() for parameter in parameters]

    for gradients in run_ranks(3, program):
        assert gradients == [[[6.0, 6.0]] * 3, [5.0, 7.0], None, [3.0, 3.0, 3.0]]


@pytest.mark.parametrize("world_size", [2, 3])
def test_few_gradients_of_two_ranks_and_few_buffers_go_with_the_record(
    monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    """In one call from the second exchange on, with the bits of an exchange of its own."""

    def program(ranks: FakeRank) -> list[tuple[int, list[torch.Tensor]]]:
        generator = torch.Generator().manual_seed(ranks.rank)
        model = nn.Sequential(nn.Linear(9, 50), nn.BatchNorm1d(50), nn.Linear(50, 3, dtype=torch.bfloat16))
        parameters, agreement = [*model.parameters()], Agreement(ranks, Requests())
        exchanged = []
        for lacking in (None, None, 1, None):  # in the third exchange one rank lacks a gradient
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            model[1].running_mean = torch.randn(50, generator=generator)
            if ranks.rank == lacking:
                parameters[0].grad = None
            before = len(ranks.world.calls[ranks.rank])
            agreement.exchange(parameters, dict(model.named_buffers()))
            calls = [size for _, size in ranks.world.calls[ranks.rank][before:]]
            values = [*(parameter.grad.clone() for parameter in parameters), *model.buffers()]
            exchanged.append((len([size for size in calls if size]), [value.clone() for value in values]))
        return exchanged

    carried = run_ranks(world_size, program)
    assert [count for count, _ in carried[0]][1::2] == ([1, 1] if world_size == 2 else [2, 2])
    monkeypatch.setattr(buckets, "RECORD_BYTES", 0)
    for of_rank, apart in zip(carried, run_ranks(world_size, program), strict=True):
        for (_, values), (_, expected) in zip(of_rank, apart, strict=True):
            assert all(map(torch.equal, values, expected))


@pytest.mark.parametrize("value", [{"loss": [1.5, 3]}, list(range(5000)), None])
def test_plain_data_of_any_size_reaches_all_ranks_in_their_order(value: Any) -> None:
    def program(ranks: FakeRank) -> list[Any]:
        return Agreement(ranks, Requests()).gather([ranks.rank, value if ranks.rank != 1 else None])

    assert run_ranks(3, program) == [[[0, value], [1, None], [2, value]]] * 3


def test_buffers_are_bitwise_those_of_rank_0_whatever_their_type_and_layout() -> None:
    def program(ranks: FakeRank) -> list[torch.Tensor]:
        is_first = not ranks.rank
        buffers = {
            "odd": torch.tensor([-0.0, torch.inf, 1e-45] if is_first else [3.0, 4.0, 5.0]),
            "count": torch.tensor(2**53 + 1 if is_first else 7),
            "flag": torch.tensor([is_first, not is_first]),
            "turned": torch.full((3, 2), float(ranks.rank), dtype=torch.bfloat16).t(),
            "cache": torch.full((2 + ranks.rank,), float(ranks.rank)),
            "empty": torch.zeros(0),
        }
        exchange, agreement = Exchange(), Agreement(ranks, Requests())
        agreement.buffers = lambda: buffers
        exchange.setup(torch.optim.SGD([nn.Parameter(torch.zeros(1))]), agreement)
        exchange()
        return [*buffers.values()]

    for rank, (odd, count, flag, turned, cache, _) in enumerate(run_ranks(3, program)):
        assert count == 2**53 + 1 and flag.tolist() == [True, False]
        assert turned.tolist() == [[0.0] * 3] * 2 and not turned.is_contiguous()
        assert cache.tolist() == [rank] * (2 + rank)
        assert odd.view(torch.int32).tolist() == torch.tensor([-0.0, torch.inf, 1e-45]).view(torch.int32).tolist()
