"""Modules and optimizers: changes that a resume restores, those that it cannot load, and what is restored in place."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state import modules
from graphtrain.state.modules import ModuleForm, load_optimizer
from graphtrain.state.objects import SavedObjects

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


@pytest.mark.full
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


def test_numbers_of_parameters_are_found_and_copied_as_a_list() -> None:
    numbers = modules._Numbers([3, 1])
    assert 1 in numbers and 2 not in numbers
    copied = copy.deepcopy(numbers)
    assert copied == [3, 1] and type(copied) is list


def test_an_optimizer_that_loads_by_itself_gets_the_state_that_was_saved() -> None:
    optimizer = KeepsGroups([torch.ones(2, requires_grad=True)], lr=0.1)
    state = optimizer.state_dict()
    load_optimizer(optimizer, state)
    assert optimizer.kept is state["param_groups"]


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


def set_(path: str, value: Any) -> Callable[[Net], Any]:
    """A change that binds an attribute of a module or of a part of it."""
    prefix, _, name = path.rpartition(".")
    return lambda net: setattr(
        net.get_submodule(prefix), name, value() if isinstance(value, types.FunctionType) else value
    )


def with_graph(net: Net) -> None:
    net.mean = net.body.weight.sum() * torch.ones(4)


def take_data(net: Net) -> None:
    net.body.weight.data = torch.ones(5, 2)


GROWING = (
    "were not made by `setup`, so a resume is refused: make all of it in `setup`, and let training switch it on "
    "(docs/recipes.md, A model that grows)"
)
REFUSED = "so a resume is refused"
# The change, what is reported, and the forms that are saved.
CHANGES: dict[str, tuple[Callable[[Net], Any], list[str], dict[str, Any]]] = {
    "nothing": (lambda net: None, [], {}),
    "values": (lambda net: torch.nn.init.zeros_(net.body.weight), [], {}),
    "new parameters": (
        lambda net: (set_("body.extra", parameter(2))(net), set_("late", torch.nn.PReLU())(net)),
        [f"model: its parameters `body.extra`, `late.weight` {GROWING}"],
        {},
    ),
    "parameters that are gone": (
        set_("body.bias", None),
        [f"model: its parameters `body.bias` are gone, {REFUSED}: keep them, and leave them out in `forward`"],
        {},
    ),
    "a module that is gone": (
        lambda net: delattr(net, "head"),
        [
            f"model: its parameters `head.weight`, `head.bias` are gone, {REFUSED}: keep them, and leave them out "
            "in `forward`"
        ],
        {},
    ),
    "parameters of another shape": (
        set_("head.weight", lambda: parameter(1, 4)),
        [
            f"model: its parameters `head.weight` have another shape, {REFUSED}: give the same ones other `data`",
        ],
        {},
    ),
    "parameters that are exchanged": (
        set_("head.weight", lambda: parameter(1, 3)),
        ["model: its parameters `head.weight` are not those that `setup` made: copy into those instead"],
        {},
    ),
    "several": (
        lambda net: (set_("head.weight", parameter(1, 3))(net), set_("body.bias", None)(net)),
        [
            f"model: its parameters `body.bias` are gone, {REFUSED}: keep them, and leave them out in `forward`",
            "model: its parameters `head.weight` are not those that `setup` made: copy into those instead",
        ],
        {},
    ),
    "other data of a parameter": (take_data, [], {"body.weight": [[5, 2], torch.float32, [2, 1]]}),
    "a buffer bound again": (set_("mean", lambda: torch.ones(4)), [], {}),
    "a buffer of another type": (
        set_("mean", lambda: torch.ones(2, 3, dtype=torch.float64).T),
        [],
        {"mean": [[3, 2], torch.float64, [1, 3]]},
    ),
    "a sparse buffer": (set_("mean", lambda: torch.ones(4).to_sparse()), [], {"mean": [[4], torch.float32, []]}),
    "a buffer that is emptied": (set_("mean", None), [], {"mean": None}),
    "a buffer that is filled": (set_("empty", lambda: torch.ones(1)), [], {"empty": [[1], torch.float32, [1]]}),
    "a new buffer": (
        lambda net: net.body.register_buffer("late", torch.ones(2)),
        [],
        {"body.late": [[2], torch.float32, [1]]},
    ),
    "a new buffer that is empty": (lambda net: net.register_buffer("late", None), [], {"late": None}),
    "a graph": (with_graph, ["model.mean keeps a graph of operations, which is not saved: detach it"], {}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_module_is_saved_or_reported(name: str) -> None:
    change, lines, forms = CHANGES[name]
    net = Net()
    saved = SavedObjects({"model": net})
    saved.note_forms()
    change(net)
    assert saved.lost() == lines
    assert saved.capture_modules()["model"].get("forms", {}) == forms


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


@pytest.mark.parametrize("name", [name for name, (_, _, forms) in CHANGES.items() if forms and "sparse" not in name])
def test_another_module_gets_the_form_that_was_saved(name: str) -> None:
    change, _, forms = CHANGES[name]
    net, other = Net(), Net()
    saved, restored = SavedObjects({"model": net}), SavedObjects({"model": other})
    saved.note_forms()
    change(net)
    modules = saved.capture_modules()
    states = {"model": net.state_dict()}
    restored.reshape(modules, states)
    restored.load("model", states["model"])
    restored.restore_modules(modules)
    assert other.state_dict().keys() == net.state_dict().keys()
    for key in forms:
        owner, _, last = key.rpartition(".")
        tensor, expected = getattr(other.get_submodule(owner), last), getattr(net.get_submodule(owner), last)
        assert (tensor is None) == (expected is None)
        if tensor is not None:
            assert tensor.dtype == expected.dtype and tensor.tolist() == expected.tolist()
            assert tensor.layout is not torch.strided or tensor.stride() == expected.stride()
            assert torch.equal(tensor.to_dense(), expected.to_dense())


def test_what_stays_as_it_is_gets_no_form_and_no_state() -> None:
    net, other = Net(), Net()
    saved, restored = SavedObjects({"model": net}), SavedObjects({"model": other})
    saved.note_forms()
    net.mean = torch.ones(7)
    net.body.eval()
    modules, mean = saved.capture_modules(), other.mean
    restored.reshape(modules, {}, but=["model"])
    restored.restore_modules(modules, but=["model"])
    restored.restore_modules({"another": modules["model"]})
    assert other.mean is mean and other.body.training
    restored.reshape(modules, {})
    assert other.mean.shape == (7,) and "mean" in dict(other.named_buffers())


@pytest.mark.parametrize(
    ("forms", "message"),
    [
        ({"gone.late": [[2], torch.float32, [1]]}, "the model no longer has a module `gone`"),
        ({"body.gone.late": None}, "the model no longer has a module `body.gone`"),
    ],
)
def test_a_form_without_its_module_is_an_error(forms: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"^{message}$"):
        SavedObjects({"model": Net()}).reshape({"model": {"forms": forms}}, {})


def test_a_new_buffer_is_persistent_as_it_was() -> None:
    net = Net()
    forms = {name: [[2], torch.float32, [1]] for name in ("kept", "dropped", "empty")}
    SavedObjects({"model": net}).reshape({"model": {"forms": forms}}, {"model": {"kept": torch.ones(2)}})
    assert {"kept", "dropped"} <= dict(net.named_buffers()).keys()
    assert "kept" in net.state_dict() and "dropped" not in net.state_dict()
    assert net.empty is not None and net.empty.shape == (2,)


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
    ("state", "message"),
    [
        ({"buffers": {"gone": None}}, "the model no longer has a buffer `gone`"),
        ({"parameters": {"gone": torch.ones(2)}}, r"the model no longer has a parameter `gone` of shape \(2,\)"),
        (
            {"parameters": {"head.bias": torch.ones(2)}},
            r"the model no longer has a parameter `head.bias` of shape \(2,\)",
        ),
    ],
)
def test_state_without_its_place_is_an_error(state: dict[str, Any], message: str) -> None:
    section = {"model": {"training": {}, "requires_grad": {}, "buffers": {}} | state}
    with pytest.raises(CheckpointError, match=f"^{message}$"):
        SavedObjects({"model": Net()}).restore_modules(section)


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


def test_a_buffer_that_repeats_its_elements_is_filled() -> None:
    net, before = Net(), torch.zeros(1, 3).expand(2, 3)
    net.hidden = before
    section = {"training": {}, "requires_grad": {}, "buffers": {"hidden": torch.ones(1, 3).expand(2, 3)}}
    SavedObjects({"model": net}).restore_modules({"model": section})
    assert net.hidden is before and before.tolist() == [[1.0] * 3] * 2


def test_lazy_modules_are_settled_once_their_parameters_are_loaded() -> None:
    made, lazy = torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.nn.Sequential(torch.nn.LazyLinear(2))
    saved, restored = SavedObjects({"model": made}), SavedObjects({"model": lazy})
    saved.note_forms()
    restored.note_forms()
    assert (saved.is_lazy(), restored.is_lazy()) == (False, True)
    assert restored.capture_modules()["model"].get("forms") is None
    restored.reshape({"model": {"forms": {"0.weight": [[2, 3], torch.float32, [3, 1]]}}}, {})
    restored.load("model", made.state_dict())
    restored.restore_modules(saved.capture_modules())
    assert not restored.is_lazy() and type(lazy[0]) is torch.nn.Linear
    assert not hasattr(lazy[0], "_initialize_hook") and not hasattr(lazy[0], "_load_hook")
    assert lazy(torch.ones(1, 3)).tolist() == made(torch.ones(1, 3)).tolist()
    assert restored.lost() == []


# ---- groups of optimizers


def groups_of(*shapes: int) -> list[dict[str, Any]]:
    return [{"params": [parameter(number + 1) for number in range(count)]} for count in shapes]


def moved(optimizer: Any) -> None:
    first, second = optimizer.param_groups
    second["params"].append(first["params"].pop())


def added(optimizer: Any) -> None:
    optimizer.add_param_group({"params": [parameter(1), parameter(2)]})


def late_in_a_group(optimizer: Any) -> None:
    optimizer.param_groups[1]["params"].append(parameter(1))


FREEZE = "leave parameters in their groups, and freeze them: requires_grad_(False), grad = None"
ORDER = (
    f"optimizer: its groups, or the parameters in one, have another order, {REFUSED}: keep it, and change the values "
    "in a group, as in group['lr'] = 0.1"
)
MADE_LATE = f"of its parameters were not made by `setup`, {REFUSED}: make all of it in `setup`"
# The change, what is reported where no parameter can be found, and where each can.
GROUPS: dict[str, tuple[Callable[[Any], Any], list[str], list[str]]] = {
    "nothing": (lambda optimizer: None, [], []),
    "values": (lambda optimizer: optimizer.param_groups[0].update(lr=7), [], []),
    "a group added": (added, [f"optimizer: 2 {MADE_LATE}"], []),
    "a parameter added": (
        late_in_a_group,
        [f"optimizer: 1 {MADE_LATE}"],
        [f"optimizer: `p1` moved to another group, {REFUSED}: let `setup` give it"],
    ),
    "a parameter moved": (
        moved,
        [f"optimizer: `a parameter` moved to another group, {REFUSED}: let `setup` give it"],
        [f"optimizer: `p2` moved to another group, {REFUSED}: let `setup` give it"],
    ),
    "a parameter gone": (
        lambda optimizer: optimizer.param_groups[0]["params"].pop(),
        [f"optimizer: its groups have lost `a parameter`, {REFUSED}: {FREEZE}"],
        [f"optimizer: its groups have lost `p2`, {REFUSED}: {FREEZE}"],
    ),
    "many gone": (
        lambda optimizer: optimizer.param_groups[1]["params"].clear(),
        [
            "optimizer: its groups have lost `a parameter`, `a parameter`, `a parameter` and 1 more, "
            f"{REFUSED}: {FREEZE}"
        ],
        [f"optimizer: its groups have lost `p1`, `p2`, `p3` and 1 more, {REFUSED}: {FREEZE}"],
    ),
    "groups in another order": (lambda optimizer: optimizer.param_groups.reverse(), [ORDER], [ORDER]),
    "parameters in another order": (
        lambda optimizer: optimizer.param_groups[0]["params"].reverse(),
        [ORDER],
        [ORDER],
    ),
    "a group less": (
        lambda optimizer: optimizer.param_groups.pop(0),
        [f"optimizer: its groups have lost `a parameter`, `a parameter`, {REFUSED}: {FREEZE}"],
        [f"optimizer: its groups have lost `p1`, `p2`, {REFUSED}: {FREEZE}"],
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_change_of_groups_is_reported(name: str) -> None:
    change, unknown, known = GROUPS[name]
    optimizer = torch.optim.SGD(groups_of(2, 4))
    saved = SavedObjects({"optimizer": optimizer})
    saved.note_forms()
    assert len(saved.groups["optimizer"]) == 2
    change(optimizer)
    for lines, found in ((unknown, saved.lost()), (known, saved.lost(lambda each: f"p{len(each)}"))):
        assert len(found) == len(lines)
        assert all(line.startswith(expected) for line, expected in zip(found, lines, strict=True)), found


def test_parameters_that_a_module_is_reported_for_are_not_reported_twice() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters())
    saved = SavedObjects({"model": net, "optimizer": optimizer})
    saved.note_forms()
    net.late = torch.nn.Linear(1, 1)
    optimizer.add_param_group({"params": [*net.late.parameters()]})
    assert saved.lost() == [f"model: its parameters `late.weight`, `late.bias` {GROWING}"]
    optimizer.add_param_group({"params": [parameter(3)]})
    assert saved.lost()[1:] == [f"optimizer: 1 of its parameters {GROWING}"]


def test_forms_of_those_that_stay_are_kept_and_those_of_others_are_noted() -> None:
    net, other = Net(), Net()
    optimizer = torch.optim.SGD(net.parameters())
    former = SavedObjects({"model": net, "other": other, "optimizer": optimizer})
    former.note_forms()
    for each in (net, other):
        each.late = torch.nn.Linear(1, 1, bias=False)
    added(optimizer)
    now = SavedObjects({"model": net, "other": Net(), "optimizer": optimizer, "another": other})
    now.note_forms(former)
    assert [line.partition(" were")[0] for line in now.lost()] == [
        "model: its parameters `late.weight`",
        "optimizer: 2 of its parameters",
    ]
    assert len(now.groups["optimizer"]) == 1
    now.drop("model")
    now.drop("optimizer")
    assert (now.modules.keys(), now.optimizers, now.stateful.keys()) == ({"other", "another"}, {}, {"other", "another"})


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


def test_parameters_of_no_module_are_saved_with_their_optimizer() -> None:
    def made(value: float) -> tuple[SavedObjects, torch.optim.Optimizer, torch.nn.Parameter]:
        net, loose = torch.nn.Linear(1, 1), torch.nn.Parameter(torch.full((2,), value))
        loose.grad = torch.full((2,), value)
        optimizer = torch.optim.SGD([{"params": [*net.parameters()]}, {"params": [net.weight, loose][1:]}], lr=0.1)
        return SavedObjects({"model": net, "optimizer": optimizer}), optimizer, loose

    (saved, optimizer, loose), (restored, other, empty) = made(3.0), made(0.0)
    captured = saved.capture_optimizers(saved.owned())["optimizer"]
    assert captured == {
        "stepped": False,
        "rates": [],
        "loose": {"1/0": {"value": captured["loose"]["1/0"]["value"], "grad": loose.grad}},
    }
    assert not captured["loose"]["1/0"]["value"].requires_grad
    restored.restore_optimizers({"optimizer": captured}, restored.owned(), but=["optimizer"])
    restored.restore_optimizers({"gone": captured}, restored.owned())
    assert empty.tolist() == [0, 0] and not hasattr(other, "_opt_called")
    restored.restore_optimizers({"optimizer": captured}, restored.owned())
    assert empty.tolist() == [3, 3] and empty.grad is loose.grad
    assert not hasattr(other, "_opt_called")
    optimizer._opt_called = True  # type: ignore[attr-defined]
    for each, stepped in ((saved, True), (made(0.0)[0], False)):
        restored.restore_optimizers(each.capture_optimizers(each.owned()), restored.owned())
        assert other._opt_called is stepped  # type: ignore[attr-defined]


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
