"""What has changed since a run began: restored in another set-up where it can be, and reported where it cannot."""

from __future__ import annotations

import array
import collections
import contextvars
import enum
import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state import codec, drift
from graphtrain.state.baseline import Baseline, _fill
from graphtrain.state.content import content_hash

HERE = __name__
REMEDY = "give what holds it a `state_dict`"
COUNT: Any = 0
TABLE: dict[str, int] = {}


class Task:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slots:
    __slots__ = ("first", "second")

    def __init__(self) -> None:
        self.first = 1


class Flags(enum.Flag):
    ONE = 1
    TWO = 2


class OwnTensor(torch.Tensor):
    pass


class OwnDict(dict[str, Any]):
    pass


def with_default(value: Any = None, *, other: Any = None) -> Any:
    return value, other


def counter() -> Callable[[], int]:
    count = 0

    def add() -> int:
        nonlocal count
        count += 1
        return count

    return add


def empty_cell() -> Callable[[], Any]:
    def call() -> Any:
        return value

    if COUNT == "never":
        value = 1
    return call


def counting() -> None:
    global COUNT
    COUNT += 1
    TABLE["a"] = 1


def changed_by(change: Callable[[Any], Any], make: Callable[[], Any], *data: str) -> tuple[Any, Baseline, drift.Drift]:
    task = make()
    baseline = Baseline({"task": task}, data)
    change(task)
    return task, baseline, baseline.drift()


def leaf() -> torch.Tensor:
    return torch.zeros(3, requires_grad=True)


def fill(task: Any) -> None:
    with torch.no_grad():
        task.x.fill_(2.0)


def with_gradient(task: Any) -> None:
    task.x.grad = torch.ones(3)


def windows() -> torch.Tensor:
    return torch.zeros(6).as_strided((4, 3), (1, 1))


def shift(task: Any) -> None:
    task.x.as_strided((6,), (1,)).copy_(torch.arange(6.0))


# How it is made, how it changes, and the paths of what is saved.
RESTORED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], list[str]]] = {
    "an attribute": (lambda: Task(x=1, y=2), lambda task: setattr(task, "x", 3), ["task"]),
    "a new attribute": (Task, lambda task: setattr(task, "x", [1, (2, {"a": 3})]), ["task"]),
    "an attribute that is gone": (lambda: Task(x=1, y=2), lambda task: delattr(task, "x"), ["task"]),
    "a slot": (Slots, lambda task: setattr(task, "first", 3), ["task"]),
    "slots set and deleted": (Slots, lambda task: (setattr(task, "second", 3), delattr(task, "first")), ["task"]),
    "an object in another place": (
        lambda: Task(x=[1], y=[1]), lambda task: vars(task).update(x=task.y, y=task.x), ["task"],
    ),
    "a list": (lambda: Task(x=[1, 2]), lambda task: task.x.append([3]), ["task.x"]),
    "a list in another order": (lambda: Task(x=[[1], [2]]), lambda task: task.x.reverse(), ["task.x"]),
    "a list of the same length": (lambda: Task(x=[1, 2]), lambda task: task.x.__setitem__(0, 5), ["task.x"]),
    "a deque": (lambda: Task(x=collections.deque([1], 3)), lambda task: task.x.append(2), ["task.x"]),
    "a set": (lambda: Task(x={1, 2}), lambda task: task.x.add(5), ["task.x"]),
    "a set without one": (lambda: Task(x={1, 2, 3}), lambda task: task.x.remove(2), ["task.x"]),
    "a dictionary": (lambda: Task(x={"a": 1}), lambda task: task.x.update(b=2), ["task.x"]),
    "a dictionary in another order": (
        lambda: Task(x={"a": 1, "b": 2}), lambda task: task.x.update(a=task.x.pop("a")), ["task.x"],
    ),
    "a dictionary of the users own": (lambda: Task(x=OwnDict(a=1)), lambda task: task.x.update(a=2), ["task.x"]),
    "an attribute of such a dictionary": (
        lambda: Task(x=OwnDict(a=1)), lambda task: setattr(task.x, "note", 2), ["task.x.__dict__"],
    ),
    "a variable of a closure": (lambda: Task(x=counter()), lambda task: task.x(), ["task.x<count>"]),
    "a variable that is first set": (
        lambda: Task(x=empty_cell()), lambda task: setattr(task.x.__closure__[0], "cell_contents", [1]),
        ["task.x<value>"],
    ),
    "a variable that is deleted": (
        lambda: Task(x=counter()), lambda task: delattr(task.x.__closure__[0], "cell_contents"), ["task.x<count>"],
    ),
    "a tensor": (lambda: Task(x=torch.zeros(3)), fill, ["task.x"]),
    "a tensor of another shape": (
        lambda: Task(x=torch.zeros(3)), lambda task: setattr(task.x, "data", torch.ones(2, 2)), ["task.x"],
    ),
    "a tensor with other strides": (
        lambda: Task(x=torch.zeros(2, 3)), lambda task: setattr(task.x, "data", torch.ones(3, 2).T), ["task.x"],
    ),
    "a leaf": (lambda: Task(x=leaf()), fill, ["task.x"]),
    "a leaf with a gradient": (lambda: Task(x=leaf()), with_gradient, ["task.x"]),
    "a leaf that is frozen": (lambda: Task(x=leaf()), lambda task: task.x.requires_grad_(False), ["task.x"]),
    "a sparse tensor": (
        lambda: Task(x=torch.eye(2).to_sparse()), lambda task: task.x.copy_(torch.ones(2, 2).to_sparse()), ["task.x"],
    ),
    "a tensor that repeats": (lambda: Task(x=torch.zeros(1).expand(3)), lambda task: task.x[:1].fill_(4), ["task.x"]),
    "overlapping windows": (lambda: Task(x=windows()), shift, ["task.x"]),
    "an array": (lambda: Task(x=numpy.zeros(3)), lambda task: task.x.fill(2), ["task.x"]),
    "bytes": (lambda: Task(x=bytearray(b"abc")), lambda task: task.x.extend(b"d"), ["task.x"]),
    "a generator of NumPy": (
        lambda: Task(x=numpy.random.default_rng(1)), lambda task: task.x.random(), ["task.x"],
    ),
    "a generator of Python": (lambda: Task(x=random.Random(1)), lambda task: task.x.random(), ["task.x"]),
    "new objects": (
        Task,
        lambda task: vars(task).update(
            x=Task(y=[torch.ones(2)]), s=types.SimpleNamespace(a=1), g=random.Random(3), k=Task, f=counting, d=list,
            b=bytearray(b"a"), e=Flags.ONE, c=collections.Counter("aab"), t=torch.Size([1]), n=numpy.arange(3),
            o=collections.OrderedDict(b=1, a=2), m=torch.ones(2, 3).T, w=slice(1, 2),
        ),
        ["task"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RESTORED)
def test_what_has_changed_is_restored_in_another_set_up(name: str) -> None:
    make, change, paths = RESTORED[name]
    task, baseline, changes = changed_by(change, make)
    generators = [path for path in changes.section if baseline.reachable.by_path[path].category == "generator"]
    always = [path for path in changes.section if path in ("task.x",) and "tensor" in changes.section[path]]
    assert changes.unknown == []
    assert list(changes.section) == paths or generators or always == paths
    other = make()
    restored = Baseline({"task": other})
    kept = {path: reached.value for path, reached in restored.reachable.by_path.items()}
    restored.restore(changes.section)
    assert content_hash(other) == content_hash(task)
    assert restored.not_restored == ()
    assert all(restored.reachable.by_path[path].value is value for path, value in kept.items())
    again = restored.drift()
    assert again.section.keys() == changes.section.keys() and again.unknown == []
    third = make()
    last = Baseline({"task": third})
    last.restore(again.section)
    assert content_hash(third) == content_hash(task)


@pytest.mark.parametrize("name", [name for name in RESTORED if "generator" not in name])
def test_what_has_not_drifted_is_put_back_as_it_was(name: str) -> None:
    """Loading and setting up may have changed it."""
    make, change, _ = RESTORED[name]
    task, baseline, _ = changed_by(change, make)
    values = ("tensor", "array", "buffer")
    if any(each.category in values for each in baseline.reachable.by_path.values()) and name != "an object":
        return
    baseline.restore({})
    assert content_hash(task) == content_hash(make())


def opened(path: Path) -> Any:
    path.write_text("a\nb\nc\n", encoding="utf-8")
    return path.open(encoding="utf-8")


def graph_of(leaf: torch.Tensor) -> torch.Tensor:
    return (leaf * leaf).sum()


ITERATOR = f"is an iterator (list_iterator), whose position is not saved: {REMEDY}"
SHARES = "shares memory with {}, which a resume cannot restore: clone it"
# How it is made, how it changes, and what is reported.
REPORTED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], list[str]]] = {
    "an iterator": (lambda: Task(x=iter([1])), lambda task: None, [f"task.x {ITERATOR}"]),
    "a new iterator": (Task, lambda task: setattr(task, "x", iter([1])), [f"task.x {ITERATOR}"]),
    "a new method": (
        Task,
        lambda task: setattr(task, "x", Slots().__init__),
        ["task.x is the method `__init__`, which is not saved: keep the object, or its name"],
    ),
    "a new function without a name": (
        Task,
        lambda task: setattr(task, "x", lambda: None),
        ["task.x is `<lambda>.<locals>.<lambda>`, which cannot be found by its name: define it at the top of a module"],
    ),
    "a new class without a name": (
        Task,
        lambda task: setattr(task, "x", type("Made", (Task,), {"__module__": HERE})()),
        ["task.x is `Made`, which cannot be found by its name: define it at the top of a module"],
    ),
    "a new object of a library": (
        Task,
        lambda task: setattr(task, "x", torch.nn.ReLU()),
        [f"task.x is a new ReLU, which cannot be saved: {REMEDY}"],
    ),
    "a new set of objects": (
        Task,
        lambda task: setattr(task, "x", {Slots()}),
        ["task.x is a set of objects, whose order is that of their addresses: use a list"],
    ),
    "a tuple of another class": (
        Task,
        lambda task: setattr(task, "x", type("Pair", (tuple,), {})([1])),
        [f"task.x is a Pair, a tuple of another class: {REMEDY}"],
    ),
    "a combination of flags": (
        Task,
        lambda task: setattr(task, "x", Flags.ONE | Flags.TWO),
        [f"task.x is a combination of flags, {Flags.ONE | Flags.TWO!r}, which is not saved: {REMEDY}"],
    ),
    "a new tensor of a class": (
        Task,
        lambda task: setattr(task, "x", torch.ones(1).as_subclass(OwnTensor)),
        ["task.x is a new OwnTensor (torch.strided), which is not saved"],
    ),
    "a new tensor in rows": (
        Task,
        lambda task: setattr(task, "x", torch.eye(2).to_sparse_csr()),
        ["task.x is a new Tensor (torch.sparse_csr), which is not saved"],
    ),
    "a changed tensor of a class": (
        lambda: Task(x=torch.zeros(1).as_subclass(OwnTensor)),
        fill,
        ["task.x is a OwnTensor that has changed, and cannot be saved"],
    ),
    "a changed array of objects": (
        lambda: Task(x=numpy.array([None])),
        lambda task: task.x.fill(1),
        ["task.x is an array of objects that has changed, and cannot be saved"],
    ),
    "a changed array of a class": (
        lambda: Task(x=numpy.recarray(1, dtype=[("a", "f4")])),
        lambda task: task.x.a.fill(5),
        ["task.x is a recarray that has changed, and cannot be saved"],
    ),
    "an array of another shape": (
        lambda: Task(x=numpy.zeros(4)),
        lambda task: setattr(task.x, "shape", (2, 2)),
        ["task.x has another shape or type than it had: bind a new array instead"],
    ),
    "a tensor with attributes": (
        lambda: Task(x=torch.zeros(1)),
        lambda task: vars(task.x).update(note=1, _dynamo_seen=2, more=3),
        ["task.x was given attributes: note, more; set them in `setup`"],
    ),
    "an array of Python": (
        lambda: Task(x=array.array("i", [1])),
        lambda task: task.x.append(2),
        [f"task.x is a array.array that has changed, and is not saved: {REMEDY}"],
    ),
    "a variable of a context": (
        lambda: Task(x=contextvars.ContextVar("x")),
        lambda task: task.x.set(1),
        [f"task.x is a _contextvars.ContextVar that has changed, and is not saved: {REMEDY}"],
    ),
    "other submodules": (
        lambda: Task(x=torch.nn.Sequential(torch.nn.ReLU())),
        lambda task: task.x.append(torch.nn.ReLU()),
        ["task.x has other submodules than it was set up with"],
    ),
    "other hooks": (
        lambda: Task(x=torch.nn.ReLU()),
        lambda task: task.x.register_forward_hook(lambda *_: None),
        ["task.x has other hooks than it was set up with"],
    ),
    "a long list": (
        lambda: Task(x=[0] * 100_001),
        lambda task: task.x.append(1),
        [
            "task.x has 100,002 items and has changed: too many to be saved",
            f"task.x has 100,001 items, of which a sample is compared: {REMEDY}",
        ],
    ),
    "a list of many objects": (
        lambda: Task(x=[[] for _ in range(1_001)]),
        lambda task: None,
        [f"task.x has 1,001 items, in which changes are not looked for: {REMEDY}"],
    ),
    "a set of objects": (
        lambda: Task(x={Slots()}),
        lambda task: None,
        [f"task.x is a set of objects, in which changes are not looked for: use a list, or {REMEDY}"],
    ),
    "a graph": (
        lambda: Task(x=leaf(), y=torch.zeros(())),
        lambda task: setattr(task, "y", graph_of(task.x)),
        ["task.y keeps a graph of operations, which is not saved: detach it"],
    ),
    "rows of a new tensor": (
        Task,
        lambda task: (setattr(task, "x", torch.zeros(4)), setattr(task, "y", task.x[1:])),
        [f"task.y {SHARES.format('task.x')}"],
    ),
    "what is saved without a state_dict": (
        lambda: Task(x=torch.zeros(2**18), y=torch.zeros(2**18), z=torch.zeros(1)),
        fill,
        [
            "task.y is beyond the 1 MiB that are saved without a `state_dict`",
            "task.z is beyond the 1 MiB that are saved without a `state_dict`",
        ],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", REPORTED)
def test_what_cannot_be_restored_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, change, lines = REPORTED[name]
    monkeypatch.setattr(codec, "MOST_BYTES", 2**20)
    _, _, changes = changed_by(change, make)
    assert changes.unknown == lines


OPEN_FILE = "is an open file, whose position is not saved: open it when it is read"


def test_a_file_is_reported_where_its_position_has_moved(tmp_path: Path) -> None:
    for read, lines in (
        (lambda file: None, []),
        (lambda file: file.close(), [OPEN_FILE]),
        (lambda file: file.readline(), [OPEN_FILE]),
        (lambda file: next(file), [OPEN_FILE]),
    ):
        with opened(tmp_path / "file") as file:
            _, _, changes = changed_by(lambda task: read(task.x), lambda: Task(x=file))  # noqa: B023
            assert changes.unknown == [f"task.x {line}" for line in lines]


def test_globals_are_restored_and_those_that_nobody_uses_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "COUNT", 0)
    monkeypatch.setitem(globals(), "TABLE", {})
    baseline = Baseline({"task": counting})
    counting()
    changes = baseline.drift()
    assert changes.unknown == []
    assert list(changes.section) == [f"{HERE}:TABLE", f"{HERE}:"] and list(changes.section[f"{HERE}:"]["set"]) == [
        "COUNT"
    ]
    table = TABLE
    counting()
    TABLE["b"] = 2
    baseline.restore(changes.section)
    assert (COUNT, TABLE, TABLE is table) == (1, {"a": 1}, True)
    assert baseline.drift().section.keys() == changes.section.keys()
    baseline.restore({})
    assert (COUNT, TABLE, TABLE is table) == (0, {}, True)
    without_code = Baseline({"task": counting}, with_code=False)
    counting()
    assert without_code.drift().section == {}


def test_globals_that_did_not_exist_are_removed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(globals(), "COUNT")
    baseline = Baseline({"task": counting})
    globals()["COUNT"] = 5
    baseline.restore({})
    assert "COUNT" not in globals()
    globals()["COUNT"] = 5
    assert list(baseline.drift().section[f"{HERE}:"]["set"]) == ["COUNT"]


def test_what_is_left_out_is_neither_saved_nor_restored() -> None:
    def make() -> Task:
        return Task(x=[1], y=Task(z=1, w=1), w=[1])

    task = make()
    baseline = Baseline({"task": task}, left_out=["task.x", "task.y.z"])
    task.x.append(2)
    task.x, task.y.z, task.y.w = [*task.x], 2, 2
    del task.w
    changes = baseline.drift()
    assert list(changes.section) == ["task", "task.y"]
    assert changes.section["task"] == {"set": {}, "removed": ["w"]} and list(changes.section["task.y"]["set"]) == ["w"]
    whole = Baseline({"task": make()})
    whole_task = whole.reachable.by_path["task"].value
    whole_task.x, whole_task.y.z, whole_task.y.w = [3], 3, 3
    section = whole.drift().section
    other = make()
    kept = other.x
    restored = Baseline({"task": other}, left_out=["task.x", "task.y.z"])
    other.x.append(7)
    restored.restore(section)
    assert other.x is kept and kept == [1, 7] and (other.y.z, other.y.w) == (1, 3)


def test_objects_that_refer_to_each_other_do_so_again() -> None:
    def change(task: Any) -> None:
        task.y = [task, task.x, task.new]

    def make() -> Task:
        return Task(x=[0], new=None)

    _, _, changes = changed_by(lambda task: (setattr(task, "new", [1]), change(task)), make)
    assert changes.unknown == []
    other = make()
    Baseline({"task": other}).restore(changes.section)
    assert other.y == [other, other.x, other.new] and other.y[1] is other.x and other.y[2] is other.new


def test_what_is_saved_elsewhere_is_not_saved_again() -> None:
    task = Task(x=torch.zeros(1), y=torch.zeros(1))
    assert list(Baseline({"task": task}, elsewhere=[id(task.x)]).drift().section) == ["task.y"]


def test_a_change_without_its_object_is_named() -> None:
    _task, _, changes = changed_by(lambda task: task.x.append(1), lambda: Task(x=[]))
    plain, gone = Task(x=None), Task()
    baseline = Baseline({"task": plain})
    baseline.restore(changes.section)
    assert baseline.not_restored == ("task.x is not what it was when it was saved: `setup` puts a plain value there",)
    with pytest.raises(CheckpointError) as caught:
        Baseline({"task": gone}).restore(changes.section)
    assert str(caught.value) == (
        "the state of `task.x` cannot be restored: it does not exist now\n  hint: make it again in `setup`; or leave "
        'it out, if nothing depends on it: Trainer(..., not_state=["task.x"])'
    )


# ---- data


def test_data_is_kept_as_it_is_and_its_own_changes_are_found() -> None:
    data = Task(x=[1], t=torch.zeros(2), a=numpy.zeros(2), b=bytearray(b"a"), g=random.Random(1), n=1)
    baseline = Baseline({"data": data, "task": Task(x=[1])}, ["data"])
    assert list(baseline.drift().section) == ["data.g"]
    before, held = content_hash(data), {name: id(value) for name, value in vars(data).items()}
    for is_failing in (False, True):
        try:
            with baseline.kept("data"):
                data.x.append(2)
                data.t.add_(1)
                data.a[0] = 1
                data.b[:] = b"bc"
                data.g.random()
                data.n, data.new = 2, 3
                assert list(baseline.drift("data").section) == [
                    "data",
                    "data.x",
                    "data.t",
                    "data.a",
                    "data.b",
                    "data.g",
                ]
                if is_failing:
                    raise OSError
        except OSError:
            pass
    assert (data.x, data.n, hasattr(data, "new")) == ([1], 1, False)
    assert held == {name: id(value) for name, value in vars(data).items()} and before


def test_what_has_no_plain_form_stays_as_drawing_from_data_has_left_it() -> None:
    data = Task(stream=(number for number in ()), n=1)
    with Baseline({"data": data}, ["data"]).kept("data"):
        data.stream, data.n = (last := (number for number in ())), 2
    assert (data.stream, data.n) == (last, 1)


# ---- what was restored


@pytest.mark.parametrize(
    "name",
    [
        "an attribute", "an attribute that is gone", "a slot", "a list of the same length", "a deque", "a set",
        "a dictionary", "a variable of a closure", "a variable that is deleted", "an attribute of such a dictionary",
    ],
)  # fmt: skip
def test_what_was_restored_is_saved_again_though_a_set_up_makes_the_same(name: str) -> None:
    """As in the process that saved it; examined once, it is the state to compare with."""
    make, change, paths = RESTORED[name]
    _, _, changes = changed_by(change, make)
    other = make()
    change(other)
    baseline = Baseline({"task": other})
    assert baseline.drift().section == {}
    baseline.restore(changes.section)
    again = baseline.drift()
    assert list(again.section) == paths
    assert again.section[paths[0]].get("removed") == changes.section[paths[0]].get("removed")
    assert baseline.drift().section == {}


def test_globals_that_were_restored_are_saved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "COUNT", 0)
    baseline = Baseline({"task": counting})
    counting()
    section = baseline.drift().section
    other = Baseline({"task": counting})
    assert f"{HERE}:" not in other.drift().section
    other.restore(section)
    assert list(other.drift().section[f"{HERE}:"]["set"]) == ["COUNT"]
    assert f"{HERE}:" not in other.drift().section


def test_a_gradient_is_restored_in_place_where_it_fits() -> None:
    def make(*shape: int) -> Task:
        tensor = torch.zeros(*shape, requires_grad=True)
        tensor.grad = torch.zeros(*shape)
        return Task(x=tensor)

    saved = make(3)
    saved.x.grad.fill_(1)
    section = Baseline({"task": saved}).drift().section
    other = make(3)
    held, values = other.x.grad, other.x.data_ptr()
    Baseline({"task": other}).restore(section)
    assert other.x.grad is held and held.tolist() == [1, 1, 1] and other.x.data_ptr() == values
    other = make(2)
    Baseline({"task": other}).restore(section)
    assert other.x.grad.tolist() == [1, 1, 1] and other.x.shape == (3,)
    saved.x.grad = None
    other = make(3)
    baseline = Baseline({"task": other})
    baseline.restore(Baseline({"task": saved}).drift().section)
    assert other.x.grad is None and other.x.requires_grad


@pytest.mark.parametrize(
    ("made", "saved", "is_in_place"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3), True),
        (torch.zeros(2, 3), torch.ones(3, 2).T, False),
        (torch.zeros(2, 3), torch.ones(2, 3).double(), False),
        (torch.zeros(900, 900)[:, 0], torch.ones(900), True),  # a placement that is not kept
        (torch.zeros(1).expand(3), torch.ones(1).expand(3), True),
        (torch.eye(2).to_sparse(), torch.ones(3, 3).to_sparse(), False),
    ],
    ids=range(6),
)
def test_values_are_put_into_the_memory_that_others_may_share(
    made: torch.Tensor, saved: torch.Tensor, is_in_place: bool
) -> None:
    task = Task(x=made)
    view = made.detach()
    Baseline({"task": task}).restore({"task.x": {"tensor": saved, "requires_grad": False}})
    assert task.x is made and torch.equal(made.to_dense(), saved.to_dense()) and made.layout is saved.layout
    is_same = view.shape == saved.shape and torch.equal(view.to_dense().to(saved.dtype), saved.to_dense())
    assert is_same is is_in_place


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("task.l", {"state": 1}),
        ("task.l", {"set": {}}),
        ("task.l", {"tensor": torch.ones(1)}),
        ("task.a", {"tensor": torch.ones(1)}),
        ("task.t", {"array": numpy.ones(1)}),
        ("task.t", {"tensor": 3}),
        ("task.a", {"array": [1.0]}),
        ("task.b", {"bytes": "a"}),
        ("task.l", {"bytes": b"a"}),
        ("task", {"items": []}),
        ("task.u", {"items": []}),
        ("task", {"set": 3}),
        ("task", {}),
        ("task", 3),
    ],
)
def test_a_change_of_another_type_is_an_error(path: str, change: Any) -> None:
    task = Task(l=[1], a=numpy.zeros(1), t=torch.zeros(1), b=bytearray(b"a"), u=(1, [2]))
    before = content_hash(task)
    with pytest.raises(CheckpointError, match=f"^the state of `{path}` cannot be restored: ") as caught:
        Baseline({"task": task}).restore({path: change})
    assert "it is of another type now" in str(caught.value) or change == 3
    assert content_hash(task) == before


@pytest.mark.parametrize("array", [numpy.ones(2), numpy.ones(1, "f4")])
def test_an_array_of_another_form_is_an_error(array: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        Baseline({"task": Task(a=numpy.zeros(1))}).restore({"task.a": {"array": array}})
    assert str(caught.value) == (
        f"the state of `task.a` cannot be restored: its shape is (1,) now, and was {array.shape}"
    )


# ---- what is looked at, and what is not


def test_what_holds_the_same_objects_is_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every save there are very many of these."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())
    hooked = torch.nn.ReLU()
    hooked.register_forward_hook(with_default)
    large = [[] for _ in range(1_001)]
    roots = {
        "model": model, "hooked": hooked, "optimizer": torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1)),
        "task": Task(l=[1], d={"a": 1}), "cell": counter(), "tensor": torch.ones(1), "set": {1},
        "deque": collections.deque(),
        "tuple": (1, []), "large": large, "data": torch.nn.ReLU(),
    }  # fmt: skip
    asked: list[str] = []
    baseline = Baseline(roots, ["data"], with_code=False)
    monkeypatch.setattr(drift.DriftFinder, "_change", lambda self, reached, restored: asked.append(reached.path))
    baseline.drift()
    assert [path for path in asked if "." not in path] == [
        "hooked", "cell", "tensor", "set", "deque", "tuple", "large", "data",
    ]  # fmt: skip
    assert not [path for path in asked if path.startswith(("model.", "task.", "optimizer.p", "cell<"))]
    asked.clear()
    model.note, model[1] = 1, torch.nn.ReLU()
    roots["task"].l.append(2)
    roots["task"].d["b"] = 2
    model[0].weight.note = 1
    baseline.drift()
    assert {"model", "task.l", "task.d", "model.0.weight"} <= {*asked}


@pytest.mark.first(1)
@pytest.mark.parametrize("count", [1_001, 100_000])
def test_large_lists_of_constants_are_compared(count: int) -> None:
    task = Task(x=[0] * count, y=dict.fromkeys(range(1001), 0))
    baseline = Baseline({"task": task})
    assert baseline.drift().section == {}
    task.x[count // 2] = 1
    task.y[3] = 1
    changes = baseline.drift()
    assert list(changes.section) == ["task.x", "task.y"] and changes.unknown == []
    other = Task(x=[0] * count, y=dict.fromkeys(range(1001), 0))
    restored = Baseline({"task": other})
    restored.restore(changes.section)
    assert (other.x, other.y) == (task.x, task.y)
    assert list(restored.drift().section) == ["task.x", "task.y"]


class Reading(Task):
    """Reads a file by position, and opens it when it is needed."""

    def read(self) -> Any:
        self.file.seek(0)


def test_data_that_seeks_may_move_and_open_its_files(tmp_path: Path) -> None:
    for kind, is_known in ((Reading, True), (Task, False)):
        file, late, third = (opened(tmp_path / name) for name in ("a", "b", "c"))
        data = kind(file=file, late=None, cache={"a": 1})
        baseline = Baseline({"data": data}, ["data"])
        file.readline()
        data.late = late
        data.cache["b"] = third
        changes = baseline.drift()
        assert (changes.unknown == []) is is_known
        assert list(changes.section) == (["data.cache"] if is_known else [])
        for each in (file, late, third):
            each.close()
    other = Reading(file=None, late=None, cache={"a": 1})
    Baseline({"data": other}, ["data"]).restore({})
    assert other.cache == {"a": 1}


def test_shares_of_memory_and_graphs_are_reported_after_everything_else() -> None:
    task = Task(x=iter([1]), y=None)
    changes = Baseline({"task": task, "data": [iter([2])]}, ["data"])
    assert changes.drift("data").unknown == [f"data[0] {ITERATOR}"]
    assert changes.drift().unknown == [f"task.x {ITERATOR}", f"data[0] {ITERATOR}"]


@pytest.mark.parametrize("place", ["task.x", "task.xs", "task.x.y", "other"])
def test_only_a_plain_value_in_its_very_place_stands_for_an_object(place: str) -> None:
    baseline = Baseline({"task": Task(x=None, xs=[1])})
    section = {place: {"items": packed([1])}}
    if place == "task.x":
        baseline.restore(section)
        assert len(baseline.not_restored) == 1
    elif place == "task.xs":
        baseline.restore(section)
        assert baseline.not_restored == ()
    else:
        with pytest.raises(CheckpointError, match="it does not exist now"):
            baseline.restore(section)


def test_memory_that_is_repeated_now_and_was_not_is_filled() -> None:
    repeated, saved = torch.zeros(1, 3).expand(2, 3), torch.ones(2, 3)
    _fill(repeated, saved)
    assert torch.equal(repeated, saved) and repeated.untyped_storage().nbytes() == 12


def packed(value: Any) -> Any:
    return codec.StateWriter(Baseline({"task": []}).reachable, {}).pack(value, "value")
