"""Promise 10: what a `state_dict` leaves out of modules, gradients and optimizers is put into the objects there are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from graphtrain.state.modules import ModuleStructure, capture_module, restore_module
from graphtrain.state.optimizers import kept_groups, load_optimizer


class Net(torch.nn.Module):
    """Leaves a part of itself, and one under another name, out of its `state_dict`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("empty", None)
        self.register_buffer("hidden", torch.zeros(2, 3), persistent=False)

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        state = super().state_dict(*arguments, **keywords)
        return {name: part for name, part in state.items() if not name.startswith("head")} | {"w": state["head.weight"]}


def test_what_a_state_dict_leaves_out_of_a_module_is_captured_and_restored() -> None:
    net, other = Net(), Net()
    net.body.eval()
    net.body.bias.requires_grad_(False)
    net.hidden = torch.full((2, 3), 5.0)
    captured = capture_module(net, ModuleStructure(net))
    assert captured["buffers"].keys() == {"empty", "hidden"} and captured["parameters"].keys() == {"head.bias"}
    hidden, bias = other.hidden, other.head.bias
    restore_module(other, captured)
    assert not other.body.training and other.head.training and not other.body.bias.requires_grad
    assert other.hidden is hidden and hidden.tolist() == [[5.0] * 3] * 2
    assert other.head.bias is bias and torch.equal(bias, net.head.bias) and bias.requires_grad


@pytest.mark.parametrize(
    ("saved", "is_same"),
    [
        (torch.ones(2, 3), True),
        (torch.ones(3, 2), False),
        (torch.ones(2, 3, dtype=torch.int32), False),
        (torch.ones(3, 2).T, False),
        (None, False),
    ],
)
def test_a_buffer_stays_the_same_tensor_where_the_values_fit(saved: Any, is_same: bool) -> None:
    net = Net()
    before = net.hidden
    section = {"training": {}, "requires_grad": {}, "buffers": {"hidden": saved, "empty": torch.ones(1)}}
    restore_module(net, {**section, "parameters": {}})
    assert (net.hidden is before) is is_same and net.empty is not None
    assert net.hidden is None if saved is None else torch.equal(net.hidden, saved)


def stepped_adam(**options: Any) -> torch.optim.Optimizer:
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in (2, 3)]
    groups = [{"params": [parameters[0]], "rate": torch.ones(2)}, {"params": parameters[1:]}]
    optimizer = torch.optim.Adam(groups, **options)
    for parameter in parameters:
        parameter.grad = torch.arange(float(len(parameter)))
    optimizer.step()
    return optimizer


def test_groups_and_what_others_hold_of_them_stay_the_same_objects() -> None:
    saved, optimizer = stepped_adam(lr=0.5, betas=(0.5, 0.25)), stepped_adam()
    saved.param_groups[0].update(steps=[1, [torch.ones(1)]], names=["a"], more=[1, 2], rate=torch.zeros(2))
    steps: list[Any] = [0, [torch.zeros(1)]]
    names, more, rate, deep = ["b"], [1], optimizer.param_groups[0]["rate"], steps[1][0]
    optimizer.param_groups[0].update(steps=steps, names=names, more=more, gone=1)
    groups, state, params = optimizer.param_groups, optimizer.state, optimizer.param_groups[0]["params"]
    first = groups[0]
    with kept_groups([optimizer]):
        load_optimizer(optimizer, copy.deepcopy(saved.state_dict()))
    assert optimizer.param_groups is groups and optimizer.state is state
    assert groups[0] is first and first["params"] is params and first["rate"] is rate
    assert (first["lr"], first["betas"], "gone" in first) == (0.5, (0.5, 0.25), False)
    assert first["steps"] is steps and steps[1][0] is deep and (steps[0], deep.item()) == (1, 1)
    assert first["names"] is names == ["a"] and first["more"] is more == [1, 2] and rate.tolist() == [0, 0]
    for one, other in zip(saved.param_groups, groups, strict=True):
        expected, found = saved.state[one["params"][0]], state[other["params"][0]]
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_the_types_of_a_state_are_those_saved_and_each_object_is_loaded_once() -> None:
    optimizer = stepped_adam()
    state, shared = copy.deepcopy(optimizer.state_dict()), torch.ones(2, dtype=torch.float64)
    state["state"][0] |= {"exp_avg": shared, "again": [shared, [shared]], "other": (1, 2)}
    del state["state"][1]
    load_optimizer(optimizer, state)
    loaded = optimizer.state[optimizer.param_groups[0]["params"][0]]
    assert loaded["exp_avg"].dtype is torch.float64 and len(optimizer.state) == 1
    assert loaded["again"][0] is loaded["again"][1][0] is loaded["exp_avg"] and loaded["other"] == (1, 2)
