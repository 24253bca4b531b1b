"""Promise 11: what is reachable from roots, what a `state_dict` covers of it, and where the search ends, by name."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain.state import reachable
from graphtrain.state.reachable import Reachable

COUNT = [0]


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("x",)


class Meter:
    _graphtrain_not_state = ("made",)

    def __init__(self) -> None:
        self.total, self.held, self.more, self.made = [0], [1], [2], [3]

    def state_dict(self) -> dict[str, Any]:
        return {"total": list(self.total), "another": self.held}

    def load_state_dict(self, state: Any) -> None: ...


def closure(**held: Any) -> Callable[[], Any]:
    value, other = held, [2]
    return lambda: (value, other)


def of_default(first: Any = COUNT, *, second: Any = None) -> None: ...


def with_gradient() -> torch.Tensor:
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad = torch.ones(2)
    leaf.note = [1]  # type: ignore[attr-defined]
    return leaf


def with_hooks() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    model.register_forward_hook(of_default)
    model.extra = [1]
    model[0].weight.grad = torch.ones(1, 1)
    return model


# All of these are found, under these paths.
PATHS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a list": (lambda: [[1], ([2],)], ["a[0]", "a[1]", "a[1][0]"]),
    "a dictionary": (lambda: {"x": [], 1: [], (1, "b"): []}, ["a['x']", "a[1]", "a[(1, 'b')]"]),
    "keys": (lambda: {Slots(): 1}, ["a.keys()[0]"]),
    "a default": (lambda: collections.defaultdict(functools.partial(list, [1])), ["a.default_factory.args[0]"]),
    "a deque": (lambda: collections.deque([[1]]), ["a[0]"]),
    "an object": (lambda: Plain(x=[1], y=Slots()), ["a.x", "a.y"]),
    "a partial": (lambda: functools.partial(len, [1], key=[2]), ["a.args[0]", "a.keywords['key']"]),
    "a method of an object in C": (lambda: [1].append, ["a.__self__"]),
    "a function with a cache": (lambda: functools.cache(closure(x=1)), ["a.__wrapped__<value>.cell_contents"]),
    "a view that is read only": (lambda: numpy.broadcast_to(numpy.ones(1), (2,)), ["a.base"]),
    "a tensor": (with_gradient, ["a.grad", "a.__dict__['note']"]),
    "a module": (with_hooks, ["a.0", "a._forward_hooks[0]", "a.extra", "a.0.weight", "a.0.weight.grad"]),
    "an optimizer": (
        lambda: torch.optim.SGD([torch.ones(1)], lr=torch.tensor(0.1)),
        ["a.param_groups[0]['lr']", "a.param_groups[0]['params'][0]"],
    ),
    "a method": (lambda: Plain(x=[1]).__init__, ["a.__self__.x"]),
    "a closure": (lambda: closure(x=[1]), ["a<other>.cell_contents", "a<value>.cell_contents['x']"]),
    "defaults": (lambda: of_default, ["a.__defaults__[0]"]),
    "a loader": (lambda: DataLoader([1]), ["a.dataset", "a.sampler", "a.batch_sampler"]),  # type: ignore[arg-type]
    "a meter": (Meter, ["a.total", "a.held", "a.more"]),
}


@pytest.mark.parametrize("name", PATHS)
def test_paths_read_as_python_does(name: str) -> None:
    make, paths = PATHS[name]
    assert {*paths} <= {*Reachable({"a": make()}).by_path}


def test_what_a_state_dict_covers() -> None:
    model = with_hooks()
    roots = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1)), "meter": Meter()}
    found = Reachable({**roots, "data": Meter(), "whole": Plain(x=[1])}, ["data"], ["whole"])
    assert list(found.stateful) == ["model", "optimizer", "meter"]
    assert {path for path, reached in found.by_path.items() if reached.is_saved_elsewhere} == {
        "model.0", "model.0.weight", "model.0.weight.grad", "optimizer.param_groups", "optimizer.param_groups[0]",
        "optimizer.param_groups[0]['params']", "optimizer.param_groups[0]['lr']",
        "meter.total", "meter.held", "whole", "whole.x",
    }  # fmt: skip
    data = {path for path, reached in found.by_path.items() if reached.is_data}
    assert data == {"data", "data.total", "data.held", "data.more"}
    assert found.by_path["meter"].in_state_dict == {"total", "another", "held"}
    assert found.find(model) is found.by_path["model"] and found.find([1]) is None


def bounds(root: Any, *whole: Any) -> list[str]:
    return list(Reachable({"a": root}, *whole).unexamined.values())


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda: [[] for _ in range(1_000)], ""),
        (lambda: [[] for _ in range(1_001)], "has 1,001 items, where changes are not looked for"),
        (lambda: [0] * 100_000, ""),
        (lambda: [0] * 100_001, "has 100,001 items"),
        (lambda: {number: [] for number in range(1_001)}, "has 1,001 items"),
        (lambda: {Slots()}, "is a set of objects, where changes are not looked for"),
        (lambda: {1, (2, "a")}, ""),
    ],
    ids=range(7),
)
def test_large_containers_are_not_looked_through(make: Callable[[], Any], bound: str) -> None:
    assert [line.startswith(bound) for line in bounds(make())] == [True] * bool(bound)
    assert bounds(make(), ["a"]) == bounds(make(), [], ["a"]) == []


def test_objects_beyond_the_bounds_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "MOST_OBJECTS", 5)
    assert bounds([[] for _ in range(4)]) == bounds(torch.nn.Sequential(*map(torch.nn.Linear, [1] * 9, [1] * 9))) == []
    (line,) = bounds([[] for _ in range(6)])
    assert line.startswith("and others are beyond the first 5 objects")
