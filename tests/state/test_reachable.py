"""What is reachable from roots: under which paths, what a `state_dict` covers, and where the search ends."""

from __future__ import annotations

import array
import collections
import enum
import functools
import io
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain.state import category, reachable
from graphtrain.state.reachable import (
    Reachable,
    calls_seek,
    held_by_state,
    is_within,
    keeps_state,
    names_in,
    position_of,
    state_of,
)

HERE = __name__
REMEDY = "give what holds it a `state_dict`"
COUNT = [0]
OTHER = [1]


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Colour(enum.Enum):
    RED = 1


Colour.RED.__dict__["note"] = [1]


class Own(list[Any]):
    pass


class Using:
    """Uses globals behind a property, in a class method and in a special method."""

    held: ClassVar[Any] = [2]

    @property
    def total(self) -> Any:
        return COUNT

    @functools.cached_property
    def cached(self) -> int:
        return 0

    @staticmethod
    def static() -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    def __call__(self) -> Any:
        return OTHER

    def method(self) -> None: ...


class Meter:
    _graphtrain_not_state = ("made",)

    def __init__(self) -> None:
        self.total, self.held, self.more, self.made = [0], [1], [2], [3]

    def state_dict(self) -> dict[str, Any]:
        return {"total": list(self.total), "another": self.held}

    def load_state_dict(self, state: Any) -> None: ...


class Failing(Meter):
    def state_dict(self) -> dict[str, Any]:
        raise OSError


class Wrong(Meter):
    def state_dict(self) -> Any:
        return [1]


def closure(**held: Any) -> Callable[[], Any]:
    value, other = held, [2]

    def inner() -> Any:
        return value, other

    return inner


def of_default(first: Any = COUNT, *, second: Any = None) -> None: ...


def hook(*_: Any) -> None: ...


def decorated() -> Any:
    @torch.no_grad()
    def inner() -> None: ...

    inner.note = [1]
    return inner


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


HOOK = ["a.{}[0]", "a.{}[0].__dict__"]
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


def test_code_is_listed_with_what_it_uses() -> None:
    found = listed(Using(), with_code=True)
    assert [path for path in found if not path.endswith(("__dict__", "__annotations__"))] == [
        "a",
        f"{HERE}:Using",
        *(f"{HERE}:Using.{name}" for name in ("held", "total", "cached", "static.__wrapped__", "of_class.__wrapped__")),
        *(f"{HERE}:Using.{name}" for name in ("method", "total.total", "cached#9", "__call__")),
        f"{HERE}:COUNT",
        f"{HERE}:OTHER",
    ]
    assert f"{HERE}:Colour.RED.__dict__['note']" in listed(Colour.RED, with_code=True)
    assert listed(Colour.RED) == [] and listed(Using) == []
    assert "a.__dict__['note']" in listed(decorated()), "as of a step function under `torch.no_grad()`"
    assert f"{HERE}:Own" in listed(Own(), with_code=True) and f"{HERE}:Plain" in listed(Plain(), with_code=True)


def test_globals_of_other_modules_are_those_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    code = {
        "other": "VALUE, UNUSED = [1], [2]\nimport third\ndef helper(): return third.DEEP",
        "third": "DEEP, NOT = [3], [4]\nimport other",
        "late": "LATE = [5]",
        "user": "import other, sys, torch\ndef step(): return other.VALUE, other.third.DEEP, torch.ones, other.helper\n"
        "def around(): return other.third.other.VALUE, sys.path\n"
        "def late():\n    import late\n    return late.LATE\n"
        "def by_name(name): return getattr(other, name)\n"
        "def by_text(): return globals()['TABLE'], getattr(other, 'VALUE')\nTABLE = [6]",
    }
    for name in code:
        module = types.ModuleType(name)
        module.__file__ = f"/home/{name}.py"
        monkeypatch.setitem(sys.modules, name, module)
    for name, text in code.items():
        module = sys.modules[name]
        exec(text, vars(module))  # noqa: S102 - as an import does
    user: Any = sys.modules["user"]

    def lists(function: Any) -> set[str]:
        found = Reachable({"a": function}).by_path
        return {path for path, reached in found.items() if ":" in path and reached.category == "list"}

    assert lists(user.step) == {"other:VALUE", "third:DEEP"}
    assert lists(user.around) == {"other:VALUE"}, "each module once, those of libraries not"
    assert lists(user.late) == {"late:LATE"}
    assert lists(user.by_name) == {"third:DEEP"}, "what the functions of the module use"
    assert lists(user.by_text) == {"user:TABLE", "other:VALUE", "third:DEEP"}
    assert Reachable({"a": user.step}).globals["third"][1] >= {"DEEP"}


def test_globals_of_code_that_exec_ran_have_the_path_of_the_function() -> None:
    for names in ({}, {"__name__": HERE}):
        namespace: dict[str, Any] = {**names}
        exec("TABLE = [1]\ndef f(): return TABLE", namespace)  # noqa: S102
        found = Reachable({"a": namespace["f"], "b": namespace["f"]})
        assert "a.__globals__:TABLE" in found.by_path and found.globals["a.__globals__"][0] is namespace


def test_hooks_of_all_modules_and_optimizers_are_roots() -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        found = Reachable({"a": []})
        place = "torch.nn.modules.module._global_forward_hooks[0]"
        assert found.by_path[place].value is hook and place not in listed([])
    finally:
        handle.remove()
    assert "torch" not in str(list(Reachable({"a": []}).by_path))


# ---- where the search ends


def objects(count: int) -> list[Any]:
    return [[] for _ in range(count)]


LARGE = "has {} items, in which changes are not looked for: " + REMEDY
SAMPLED = "has {} items, of which a sample is compared: " + REMEDY


@pytest.mark.parametrize(
    ("make", "bounds"),
    [
        (lambda: objects(1_000), {}),
        (lambda: objects(1_001), {"a": LARGE.format("1,001")}),
        (lambda: [0] * 1_001, {}),
        (lambda: [0] * 100_000, {}),
        (lambda: [0] * 100_001, {"a": SAMPLED.format("100,001")}),
        (lambda: {number: [] for number in range(1_001)}, {"a": LARGE.format("1,001")}),
        (lambda: dict.fromkeys(range(100_001)), {"a": SAMPLED.format("100,001")}),
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


def test_items_that_are_listed_elsewhere_are_compared_there() -> None:
    many = objects(1_001)
    parts = Plain(**{f"x{number}": part for number, part in enumerate(many)})
    assert Reachable({"a": many, "b": parts}, with_code=False).bounds == {}
    assert Reachable({"a": {Colour.RED}, "b": []}, with_code=False).bounds == {}


def test_of_data_fewer_items_are_looked_through() -> None:
    assert len(listed(objects(64), data=["a"])) == 65 and len(listed(objects(65), data=["a"])) == 1
    found = Reachable({"a": objects(65)}, ["a"], with_code=False).by_path["a"]
    assert (found.length, found.is_entered, len(found.parts)) == (65, False, 65)
    long = Reachable({"a": [0] * 200_000}, with_code=False).by_path["a"]
    assert (long.length, long.is_entered, len(long.parts)) == (200_000, False, 1_026)


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


def test_what_hides_its_state_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(category._KNOWN, Slots, "hidden")
    found = Reachable({"a": Slots(), "b": [Slots()], "c": [Slots()]}, ["b"], ["c"], with_code=False)
    assert found.bounds == {"a": f"is a {HERE}.Slots, in which changes are not looked for: {REMEDY}"}


# ---- small questions


def test_what_is_noted_of_an_object_at_the_begin(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("abc")
    with (tmp_path / "file").open() as file:
        file.read(1)
        values = [numpy.zeros((2, 3), "i4"), file, array.array("i", [1]), functools.partial(hook)]
        found = Reachable({"a": values}, with_code=False).by_path
        assert (found["a[0]"].keys, found["a[0]"].position, found["a[1]"].position) == ((2, 3), "int32", "1")
        assert len(found["a[2]"].position) == 32


def test_the_position_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a\nb\n")
    with path.open() as file:
        assert position_of(file) == "0"
        next(file)
        assert position_of(file) == "read"
    assert position_of(file) == ""
    with path.open("w") as file:
        assert position_of(file) == ""
    assert position_of(io.StringIO("abc")) == position_of(io.StringIO("abc")) != position_of(io.StringIO("abd"))


def test_paths_within_others() -> None:
    table = {"a.b": True, "a.b.c": True, "a.b[0]": True, "a.b<x>": True, "a.bc": False, "a": False, "x.a.b": False}
    assert {path: is_within(path, ["q", "a.b"]) for path in table} == table
    assert not is_within("a", [])


def test_objects_with_a_state_dict_that_cannot_be_read_have_none() -> None:
    kept = [Meter(), torch.nn.ReLU(), Plain(state_dict=len, load_state_dict=len), Plain()]
    assert [keeps_state(value) for value in kept] == [True, True, False, False]
    assert state_of(Failing()) == state_of(Wrong()) == {} and state_of(Meter())["total"] == [0]
    meter = Meter()
    assert held_by_state(meter, meter.state_dict()) == {"held"}
    state = {"x": meter.total, "y": 1}
    assert held_by_state(meter, state) == {"total"}
    meter.more = state  # type: ignore[assignment]
    assert held_by_state(meter, state) == {"total", "more"}


def test_the_names_in_code() -> None:
    text = """
def f():
    global SET, GONE
    import a.b
    from c import d
    SET = x.read
    x.written = method.call()
    del GONE
    return lambda: INNER.deep
def plain(): return "text.of", "no text", "name"
def by_text(): return getattr(x, "name"), "a.b", "no text", 3
"""
    namespace: dict[str, Any] = {}
    exec(text, namespace)  # noqa: S102
    found = names_in(namespace["f"].__code__)
    assert found.variables == {"SET", "GONE", "x", "method", "INNER"}
    assert found.attributes == {"read", "written", "call", "deep", "d"}
    assert (found.imported, found.assigned) == (("a.b", "c"), {"written"})
    assert found.assigned_variables == {"SET", "GONE"}
    assert names_in(namespace["plain"].__code__).variables == set()
    found = names_in(namespace["by_text"].__code__)
    assert found.variables == {"getattr", "x", "name", "a.b"} and found.imported == ("a.b", "name")


def test_classes_that_seek() -> None:
    class Seeking:
        def read(self, file: Any) -> None:
            file.seek(0)

    class Derived(Seeking):
        pass

    class Overriding(Seeking):
        def read(self, file: Any) -> None: ...

    class Calling(Seeking):
        def read(self, file: Any) -> None:
            super().read(file)

    kinds: list[type] = [Seeking, Derived, Calling, Overriding, Plain, io.BytesIO]
    assert [calls_seek(kind) for kind in kinds] == [True, True, True, False, False, False]
