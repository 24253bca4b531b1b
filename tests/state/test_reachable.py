"""What is reachable from roots: under which paths, what a `state_dict` covers, and where the search ends."""

from __future__ import annotations

import collections
import enum
import functools
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain.state import reachable
from graphtrain.state.reachable import (
    Reachable,
    is_within,
)

REMEDY = "give what holds it a `state_dict`"
COUNT = [0]


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Colour(enum.Enum):
    RED = 1


Colour.RED.__dict__["note"] = [1]


class Own(list[Any]):
    pass


class Meter:
    _graphtrain_not_state = ("made",)

    def __init__(self) -> None:
        self.total, self.held, self.more, self.made = [0], [1], [2], [3]

    def state_dict(self) -> dict[str, Any]:
        return {"total": list(self.total), "another": self.held}

    def load_state_dict(self, state: Any) -> None: ...


def closure(**held: Any) -> Callable[[], Any]:
    value, other = held, [2]

    def inner() -> Any:
        return value, other

    return inner


def of_default(first: Any = COUNT, *, second: Any = None) -> None: ...


def hook(*_: Any) -> None: ...


def listed(root: Any, **options: Any) -> list[str]:
    return list(Reachable({"a": root}, **{"with_code": False, **options}).by_path)


def with_gradient() -> torch.Tensor:
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad = torch.ones(2)
    leaf.note = [1]  # type: ignore[attr-defined]
    leaf.register_hook(hook)
    leaf.register_post_accumulate_grad_hook(hook)
    return leaf


def with_hooks() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    model.register_forward_hook(hook)
    model.extra = [1]
    model[0].weight.grad = torch.ones(1, 1)
    return model


def stepping() -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([torch.ones(1)], lr=torch.tensor(0.1))
    optimizer.register_step_pre_hook(hook)
    optimizer.register_step_post_hook(hook)
    optimizer.extra = [1]  # type: ignore[attr-defined]
    return optimizer


# Each as it is listed, breadth first, without the functions' own parts.
PATHS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "values": (lambda: [1, "a", None, torch.float32, threading_lock()], ["a"]),
    "a list": (lambda: [[1], ([2],)], ["a", "a[0]", "a[1]", "a[1][0]"]),
    "an object twice": (lambda: [COUNT, COUNT], ["a", "a[0]"]),
    "a dictionary": (
        lambda: {"x": [], 1: [], (1, "b"): [], 2**32: [], 2**32 - 1: []},
        ["a", "a['x']", "a[1]", "a[(1, 'b')]", "a[#3]", "a[4294967295]"],
    ),
    "keys": (
        lambda: {Slots(): 1, (Slots(), 1): []},
        ["a", "a.keys()[0]", "a[(a Slots, 1)]", "a.keys()[1]", "a.keys()[1][0]"],
    ),
    "keys with one text": (
        lambda: {Slots(): [], Slots(): []},
        ["a", "a[a Slots]", "a.keys()[0]", "a[a Slots]#3", "a.keys()[1]"],
    ),
    "a default": (
        lambda: collections.defaultdict(functools.partial(list, [1])),
        ["a", *(f"a.default_factory{part}" for part in ("", ".args", ".keywords", ".args[0]"))],
    ),
    "a deque": (lambda: collections.deque([[1]]), ["a", "a[0]"]),
    "an object": (lambda: Plain(x=[1], y=Slots()), ["a", "a.x", "a.y"]),
    "a partial": (
        lambda: functools.partial(len, [1], key=[2]), ["a", "a.args", "a.keywords", "a.args[0]", "a.keywords['key']"],
    ),
    "a method of an object in C": (lambda: [1].append, ["a.__self__"]),
    "a function of C": (lambda: [len, torch.relu], ["a"]),
    "a function with a cache": (lambda: functools.cache(closure(x=1)), ["a.__wrapped__", "a.__wrapped__<other>",
        "a.__wrapped__<value>", "a.__wrapped__<other>.cell_contents", "a.__wrapped__<value>.cell_contents"]),
    "a view of an array that is read only": (lambda: numpy.broadcast_to(numpy.ones(1), (2,)), ["a", "a.base"]),
    "a view of an array": (lambda: numpy.ones(2)[:1], ["a"]),
    "a tensor": (with_gradient, ["a", "a.grad", "a._backward_hooks[0]", "a.__dict__['note']"]),
    "a tensor that is not a leaf": (lambda: with_gradient() * 2, ["a"]),
    "a lazy parameter": (torch.nn.UninitializedParameter, ["a"]),
    "a module": (with_hooks, ["a", "a.0", "a._forward_hooks[0]", "a.extra", "a.0.weight", "a.0.weight.grad"]),
    "an optimizer": (
        stepping,
        ["a", "a._optimizer_step_pre_hooks[0]", "a.param_groups", "a.param_groups[0]", "a.param_groups[0]['lr']",
         "a.extra", "a.param_groups[0]['params']", "a.param_groups[0]['params'][0]"],
    ),
    "a method": (lambda: Plain(x=[1]).__init__, ["a", "a.__self__", "a.__func__", "a.__self__.x"]),
    "a closure": (
        lambda: closure(x=[1]),
        ["a", "a<other>", "a<value>", "a<other>.cell_contents", "a<value>.cell_contents",
         "a<value>.cell_contents['x']"],
    ),
    "defaults": (lambda: of_default, ["a", "a.__defaults__", "a.__defaults__[0]"]),
    "a function of a library": (lambda: torch.nn.functional.relu, ["a"]),
    "a container of the users own": (lambda: Own([[1]]), ["a", "a[0]"]),
    "a loader": (
        lambda: DataLoader([1], multiprocessing_context=None), ["a", "a.dataset", "a.sampler", "a.batch_sampler"],
    ),
    "a meter": (Meter, ["a", "a.total", "a.held", "a.more"]),
}  # fmt: skip


class Slots:
    __slots__ = ("x",)


def threading_lock() -> Any:
    import threading

    return threading.Lock()


@pytest.mark.parametrize("name", PATHS)
def test_paths_read_as_python_does(name: str) -> None:
    make, paths = PATHS[name]
    value = make()
    found = [path for path in listed(value) if not path.endswith((".__dict__", ".collate_fn", "__kwdefaults__"))]
    found = [
        path for path in found if "_hooks[0]." not in path and "__func__." not in path and "hook_handles" not in path
    ]
    expected = [path for path in paths if path != "a.__dict__"]
    assert found == expected or found[: len(expected)] == expected, found


def test_what_a_state_dict_covers() -> None:
    model = with_hooks()
    roots = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1)), "meter": Meter()}
    found = Reachable({**roots, "data": Meter(), "whole": Plain(x=[1])}, ["data"], ["whole"], with_code=False)
    assert list(found.stateful) == ["model", "optimizer", "meter"]
    covered = {path for path, reached in found.by_path.items() if reached.is_covered}
    assert covered == {
        "model.0", "model.0.weight", "model.0.weight.grad", "optimizer.param_groups", "optimizer.param_groups[0]",
        "optimizer.param_groups[0]['params']", "optimizer.param_groups[0]['lr']",
        "meter.total", "meter.held", "whole", "whole.x",
    }  # fmt: skip
    assert {path for path, reached in found.by_path.items() if reached.is_data} == {
        "data", "data.total", "data.held", "data.more",
    }  # fmt: skip
    kept = {path for path, reached in found.by_path.items() if reached.is_kept}
    assert kept == {"meter.total", "meter.held", "meter.more"}
    assert found.by_path["meter"].covered == {"total", "another", "held"}
    assert found.by_path["data"].covered == frozenset() and found.by_path["meter"].ignored == {"made"}
    assert found.path_of(model) == "model" and found.path_of([1]) is None and found.find([1]) is None
    empty = torch.nn.Linear(1, 1, device="meta")
    assert Reachable({"a": empty}, with_code=False).stateful == {}


# ---- where the search ends


def objects(count: int) -> list[Any]:
    return [[] for _ in range(count)]


LARGE = "has {} items, in which changes are not looked for: " + REMEDY


@pytest.mark.parametrize(
    ("make", "bounds"),
    [
        (lambda: objects(1_000), {}),
        (lambda: objects(1_001), {"a": LARGE.format("1,001")}),
        (lambda: [0] * 1_001, {}),
        (lambda: [0] * 100_000, {}),
        (lambda: [0] * 100_001, {"a": LARGE.format("100,001")}),
        (lambda: {number: [] for number in range(1_001)}, {"a": LARGE.format("1,001")}),
        (lambda: dict.fromkeys(range(100_001)), {"a": LARGE.format("100,001")}),
        (
            lambda: {Slots()},
            {"a": f"is a set of objects, in which changes are not looked for: use a list, or {REMEDY}"},
        ),
        (lambda: {1, (2, "a")}, {}),
        (lambda: Meter.__new__(type("Kept", (Meter,), {"x": 1})), {}),
    ],
    ids=range(10),
)
def test_large_containers_are_not_looked_through(make: Callable[[], Any], bounds: dict[str, str]) -> None:
    assert Reachable({"a": make()}, with_code=False).bounds == bounds
    assert Reachable({"a": make()}, ["a"], with_code=False).bounds == {}
    assert Reachable({"a": make()}, [], ["a"], with_code=False).bounds == {}


def test_objects_beyond_the_bounds_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "MOST_OBJECTS", 5)
    assert Reachable({"a": objects(4)}, with_code=False).bounds == {}
    found = Reachable({"a": objects(6)}, with_code=False)
    assert len(found.by_path) == 5 and found.bounds == {
        "": f"more than 5 objects are reachable, and changes beyond `a[4]` are not looked for: {REMEDY}"
    }
    assert (
        Reachable({"a": torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(9)])}, with_code=False).bounds == {}
    )
    meter = Meter()
    meter.more = objects(9)
    assert Reachable({"a": meter}, with_code=False).bounds == {}


def test_objects_too_deep_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "MOST_DEPTH", 3)
    assert Reachable({"a": [[[[]]]]}, with_code=False).bounds == {}
    assert Reachable({"a": [[[[[]]]]]}, with_code=False).bounds == {
        "a[0][0][0][0]": f"is nested more than 3 deep, and changes in it are not looked for: {REMEDY}"
    }


# ---- small questions


def test_paths_within_others() -> None:
    table = {"a.b": True, "a.b.c": True, "a.b[0]": True, "a.b<x>": True, "a.bc": False, "a": False, "x.a.b": False}
    assert {path: is_within(path, ["q", "a.b"]) for path in table} == table
    assert not is_within("a", [])
