"""Restoring the state of optimizers."""

from __future__ import annotations

import copy
from typing import Any

import torch

from graphtrain.state.modules import load_optimizer

COUNT = 300


class Number(int):
    """A number that counts how often it is compared."""

    compared = 0

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Number.compared += 1
        return int(self) == other


def made() -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam([torch.ones(2, requires_grad=True) for _ in range(COUNT)])
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones(2)
    return optimizer


def test_the_state_of_many_parameters_is_loaded_without_searching_for_each() -> None:
    optimizer = made()
    optimizer.step()
    state: dict[str, Any] = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["params"] = [Number(number) for number in range(COUNT)]
    state["state"] = {Number(number): value for number, value in state["state"].items()}
    other = made()
    Number.compared = 0
    load_optimizer(other, state)
    assert Number.compared < 20 * COUNT, "torch searches a list of all of them for each tensor"
    assert all(torch.equal(other.state[p]["exp_avg"], torch.full((2,), 0.1)) for p in other.param_groups[0]["params"])
    assert type(other.param_groups[0]["params"]) is list
    assert type(state["param_groups"][0]["params"]) is list


class KeepsGroups(torch.optim.SGD):
    """An optimizer with a `load_state_dict` of its own, which keeps what it is given."""

    def load_state_dict(self, state_dict: Any) -> None:
        self.kept = state_dict["param_groups"]
        super().load_state_dict(state_dict)


def test_an_optimizer_that_loads_by_itself_gets_the_state_that_was_saved() -> None:
    optimizer = KeepsGroups([torch.ones(2, requires_grad=True)], lr=0.1)
    state = optimizer.state_dict()
    load_optimizer(optimizer, state)
    assert optimizer.kept is state["param_groups"]
