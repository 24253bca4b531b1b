"""Modules and optimizers: changes that a resume restores, those that it cannot load, and what is restored in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from graphtrain.state import modules
from graphtrain.state.modules import ModuleForm, load_optimizer
from graphtrain.state.objects import SavedObjects

# ---- what a resume with the same `setup` could not load


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("empty", None)
        self.register_buffer("hidden", torch.zeros(2, 3), persistent=False)


def parameter(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(shape))


def with_graph(net: Net) -> None:
    net.mean = net.body.weight.sum() * torch.ones(4)


def test_a_module_that_has_not_changed_is_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every save: that takes five times as long as to look at what was noted."""
    net = Net()
    with_graph(net)
    form = ModuleForm(net)
    monkeypatch.setattr(modules, "_tensors", lambda module: pytest.fail("walked"))
    assert (form.lost("model", net), form.changed(net)) == ([], {})


def test_of_a_graph_that_a_buffer_had_at_the_set_up_and_of_a_second_one_nothing_is_said() -> None:
    net = Net()
    with_graph(net)
    saved = SavedObjects({"model": net})
    saved.note_forms()
    assert saved.lost() == []
    net.hidden = net.mean.sum() * torch.ones(2, 3)
    net.register_buffer("late", net.mean * 2)
    net.register_buffer("constant", (torch.ones(1, requires_grad=True) * 2).detach() * 2)
    assert saved.lost() == ["model.hidden keeps a graph of operations, which is not saved: detach it"]


class Leaving(Net):
    """Leaves its frozen parameters, and one under another name, out of its `state_dict`."""

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        state = super().state_dict(*arguments, **keywords)
        return {name: part for name, part in state.items() if not name.startswith("head")} | {"w": state["head.weight"]}


def test_what_a_state_dict_leaves_out_of_a_module_is_captured_and_restored() -> None:
    net, other = Leaving(), Leaving()
    net.body.eval()
    net.body.bias.requires_grad_(False)
    net.hidden = torch.full((2, 3), 5.0)
    captured = SavedObjects({"model": net}).capture_modules()["model"]
    assert captured["training"] == {"": True, "body": False, "head": True}
    assert captured["requires_grad"] == {
        "body.weight": True,
        "body.bias": False,
        "head.weight": True,
        "head.bias": True,
    }
    assert captured["buffers"].keys() == {"empty", "hidden"} and captured["buffers"]["hidden"] is net.hidden
    assert captured["parameters"].keys() == {"head.bias"} and not captured["parameters"]["head.bias"].requires_grad
    hidden, bias = other.hidden, other.head.bias
    SavedObjects({"model": other}).restore_modules({"model": captured})
    assert not other.body.training and other.head.training and not other.body.bias.requires_grad
    assert other.hidden is hidden and hidden.tolist() == [[5.0] * 3] * 2
    assert other.head.bias is bias and torch.equal(bias, net.head.bias)
    net.head.bias.requires_grad_(False)
    assert SavedObjects({"model": net}).capture_modules()["model"]["parameters"] == {}


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
    SavedObjects({"model": net}).restore_modules({"model": section})
    assert (net.hidden is before) is is_same
    assert net.hidden is None if saved is None else torch.equal(net.hidden, saved)
    assert net.empty is not None and net.empty.item() == 1


# ---- groups of optimizers


def test_what_is_trained_as_a_whole_in_evaluation_mode_is_named() -> None:
    nets = {name: Net() for name in ("trained", "evaluated", "free")}
    optimizer = torch.optim.SGD([*nets["trained"].parameters(), *nets["evaluated"].parameters()])
    nets["evaluated"].eval()
    nets["free"].eval()
    saved = SavedObjects({**nets, "optimizer": optimizer})
    assert saved.trained_in_evaluation_mode() == ["evaluated"]
    assert saved.weights()["free"] == {"body.weight", "body.bias", "head.weight", "head.bias"}
    assert len(saved.owned()) == 12
    assert [path for path, _ in SavedObjects({"optimizer": optimizer, **nets}).modules_first()] == [*nets, "optimizer"]


# ---- gradients, and parameters of no module


def test_gradients_are_restored_in_place_where_they_fit() -> None:
    net = Net()
    saved = SavedObjects({"model": net})
    net.body.weight.grad = torch.ones(3, 2)
    captured = saved.capture_gradients()
    assert captured == {"model": {"body.weight": net.body.weight.grad}}
    held = net.head.weight.grad = torch.zeros(1, 3)
    net.head.bias.grad = torch.zeros(1)
    net.body.bias.grad = torch.zeros(3)
    section = {"head.weight": torch.ones(1, 3), "body.bias": torch.ones(3).to_sparse(), "body.weight": torch.ones(3, 2)}
    saved.restore_gradients({"model": section}, but=["model"])
    assert held.tolist() == [[0.0] * 3] and net.head.bias.grad is not None
    net.body.weight.grad = None
    saved.restore_gradients({"model": section, "gone": {}})
    assert net.head.weight.grad is held and held.tolist() == [[1.0] * 3]
    assert net.body.bias.grad is section["body.bias"] and net.body.weight.grad is section["body.weight"]
    assert net.head.bias.grad is None


def test_a_gradient_leaves_the_buffer_of_all_where_it_differs_from_its_part() -> None:
    buffer = torch.arange(9.0)
    net = torch.nn.Linear(2, 3)
    parts = net.weight.grad, net.bias.grad = buffer[:6].view(3, 2), buffer[6:9]
    saved = SavedObjects({"model": net})
    for section, is_part in (
        ({"weight": parts[0].clone(), "bias": parts[1].clone()}, True),
        ({}, True),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}, False),
    ):
        saved.part_gradients({"model": section})
        assert (net.weight.grad is parts[0], net.bias.grad is parts[1]) == (is_part, is_part)
    assert net.weight.grad is section["weight"]
    separate = net.weight.grad = torch.ones(3, 2)
    net.bias.grad = torch.ones(3).to_sparse()
    saved.part_gradients({"model": {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}})
    assert net.weight.grad is separate and net.bias.grad.layout is torch.sparse_coo
    buffer[0] = float("nan")
    net.weight.grad = parts[0]
    saved.part_gradients({"model": {"weight": parts[0].clone()}})
    assert net.weight.grad is parts[0]


# ---- the state of optimizers, loaded into the objects that are there


def stepped_adam(**options: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(
        [{"params": [parameter(2)], "rate": torch.ones(2)}, {"params": [parameter(3)]}], **options
    )
    for group in optimizer.param_groups:
        group["params"][0].grad = torch.ones_like(group["params"][0])
        group["params"][0].grad[0] = 2
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
    load_optimizer(optimizer, copy.deepcopy(saved.state_dict()))
    assert optimizer.param_groups is groups and optimizer.state is state
    assert groups[0] is first and first["params"] is params and first["rate"] is rate
    assert (first["lr"], first["betas"], "gone" in first) == (0.5, (0.5, 0.25), False)
    assert first["steps"] is steps and steps[1][0] is deep and (steps[0], deep.item()) == (1, 1)
    assert first["names"] is names == ["a"]
    assert first["more"] is more and more == [1, 2] and rate.tolist() == [0, 0]
    for one, other in zip(saved.param_groups, groups, strict=True):
        expected, found = saved.state[one["params"][0]], state[other["params"][0]]
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_the_types_of_a_state_are_those_saved_and_each_object_is_loaded_once() -> None:
    optimizer = stepped_adam()
    state = copy.deepcopy(optimizer.state_dict())
    shared = torch.ones(2, dtype=torch.float64)
    state["state"][0] |= {"exp_avg": shared, "again": [shared, [shared]], "other": (1, 2)}
    del state["state"][1]
    load_optimizer(optimizer, state)
    loaded = optimizer.state[optimizer.param_groups[0]["params"][0]]
    assert loaded["exp_avg"].dtype is torch.float64
    assert loaded["again"][0] is loaded["again"][1][0] is loaded["exp_avg"] and loaded["other"] == (1, 2)
    assert len(optimizer.state) == 1


class Wrapping(torch.optim.Optimizer):
    """Wraps another one, in a form of its own, and replaces groups and states of both."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__([each for group in inner.param_groups for each in group["params"]], {})
        self.inner, self.me = inner, self
        self.param_groups = inner.param_groups

    def state_dict(self) -> Any:
        return {"inner": self.inner.state_dict(), "param_groups": 3}

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict["inner"])
        self.param_groups = self.inner.param_groups
        self.state = dict(self.inner.state)


def test_an_optimizer_that_wraps_another_keeps_its_groups_too() -> None:
    saved, optimizer = Wrapping(stepped_adam(lr=0.5)), Wrapping(stepped_adam())
    groups, state, inner_state = optimizer.param_groups, optimizer.state, optimizer.inner.state
    load_optimizer(optimizer, copy.deepcopy(saved.state_dict()))
    assert optimizer.param_groups is optimizer.inner.param_groups is groups and groups[0]["lr"] == 0.5
    assert optimizer.inner.state is inner_state and len(inner_state) == 2
    assert optimizer.state is not state, "which is of another type now"
