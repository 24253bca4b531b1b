"""What has changed since a run began: restored in another set-up where it can be, and reported where it cannot."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
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


def with_default(value: Any = None, *, other: Any = None) -> Any:
    return value, other


def counter() -> Callable[[], int]:
    count = 0

    def add() -> int:
        nonlocal count
        count += 1
        return count

    return add


def counting() -> None:
    global COUNT
    COUNT += 1
    TABLE["a"] = 1


def changed_by(change: Callable[[Any], Any], make: Callable[[], Any], *data: str) -> tuple[Any, Baseline, drift.Drift]:
    task = make()
    baseline = Baseline({"task": task}, data)
    change(task)
    return task, baseline, baseline.drift()


def fill(task: Any) -> None:
    with torch.no_grad():
        task.x.fill_(2.0)


SHARES = "shares memory with {}, which a resume cannot restore: clone it"
# How it is made, how it changes, and what is reported.
REPORTED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], list[str]]] = {
    "a new tensor in rows": (
        Task,
        lambda task: setattr(task, "x", torch.eye(2).to_sparse_csr()),
        ["task.x is a new Tensor (torch.sparse_csr), which is not saved"],
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
    "a list of many objects": (
        lambda: Task(x=[[] for _ in range(1_001)]),
        lambda task: None,
        [f"task.x has 1,001 items, in which changes are not looked for: {REMEDY}"],
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


# ---- what was restored


def test_what_was_restored_is_saved_again_though_a_set_up_makes_the_same() -> None:
    """As in the process that saved it; examined once, it is the state to compare with."""
    _, _, changes = changed_by(lambda task: task.x.append(2), lambda: Task(x=[1]))
    baseline = Baseline({"task": Task(x=[1, 2])})
    assert baseline.drift().section == {}
    baseline.restore(changes.section)
    assert list(baseline.drift().section) == ["task.x"]
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


def test_memory_that_is_repeated_now_and_was_not_is_filled() -> None:
    repeated, saved = torch.zeros(1, 3).expand(2, 3), torch.ones(2, 3)
    _fill(repeated, saved)
    assert torch.equal(repeated, saved) and repeated.untyped_storage().nbytes() == 12
