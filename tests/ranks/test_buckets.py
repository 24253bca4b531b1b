"""Gradients in buckets: their order, their types, and parameters without a gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks


def agreement_of(ranks: Ranks) -> Agreement:
    return Agreement(ranks, Requests(agrees=True))


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


@pytest.mark.parametrize("value", [{"loss": [1.5, 3]}, list(range(5000)), "text", None])
def test_plain_data_of_any_size_reaches_all_ranks_in_their_order(value: Any) -> None:
    def program(ranks: Ranks) -> list[Any]:
        return agreement_of(ranks).gather([ranks.rank, value if ranks.rank != 1 else None])

    for gathered in run_ranks(3, program):
        assert gathered == [[0, value], [1, None], [2, value]]
