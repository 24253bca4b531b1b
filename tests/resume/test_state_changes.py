"""Promises 10 and 11: what has changed since a run began is restored in place, or named where it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from graphtrain import CheckpointError
from graphtrain.state import codec
from graphtrain.state.changes import changes_since, restore_changes
from graphtrain.state.snapshot import StateSnapshot


class Task:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


# How it is made, how it changes, and what is reported.
REPORTED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], list[str]]] = {
    "a new tensor in rows": (
        Task, lambda task: setattr(task, "x", torch.eye(2).to_sparse_csr()),
        ["task.x cannot be saved: it is a new Tensor (torch.sparse_csr)"],
    ),
    "a changed array of a class": (
        lambda: Task(x=numpy.recarray(1, dtype=[("a", "f4")])), lambda task: task.x.a.fill(5),
        ["task.x cannot be saved: it is a recarray that has changed"],
    ),
    "an array of another shape": (
        lambda: Task(x=numpy.zeros(4)), lambda task: setattr(task.x, "shape", (2, 2)),
        ["task.x cannot be saved: its shape or dtype has changed in place"],
    ),
    "a tensor with attributes": (
        lambda: Task(x=torch.zeros(1)), lambda task: vars(task.x).update(note=1, _dynamo_seen=2, more=3),
        ["task.x cannot be saved: training added attributes to it: note, more"],
    ),
    "rows of a new tensor": (
        Task, lambda task: (setattr(task, "x", torch.zeros(4)[1:]), setattr(task, "y", task.x._base)),
        ["task.y shares memory with task.x"],
    ),
    "beyond what is saved, whatever is small": (
        lambda: Task(x=torch.zeros(2**18), y=torch.zeros(2**18), z=torch.zeros(1)),
        lambda task: [tensor.fill_(2.0) for tensor in vars(task).values()],
        ["task.y cannot be saved: more than 1 MiB", "task.z cannot be saved: more than 1 MiB"],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", REPORTED)
def test_what_cannot_be_restored_is_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, change, expected = REPORTED[name]
    monkeypatch.setattr(codec, "MOST_BYTES", 2**20)
    task = make()
    snapshot = StateSnapshot({"task": task})
    change(task)
    unknown = changes_since(snapshot).unknown
    assert [line.startswith(start) for line, start in zip(unknown, expected, strict=True)] == [True] * len(expected)


def test_what_is_left_out_is_neither_saved_nor_restored() -> None:
    def make() -> Task:
        return Task(x=[1], y=Task(z=1, w=1), w=[1])

    task, other = make(), make()
    snapshot, whole = StateSnapshot({"task": task}, left_out=["task.x", "task.y.z"]), StateSnapshot({"task": other})
    for each in (task, other):
        each.x, each.y.z, each.y.w = [3], 3, 3
        del each.w
    section = changes_since(snapshot).section
    assert section["task"] == {"set": {}, "removed": ["w"]} and list(section["task.y"]["set"]) == ["w"]
    resumed = make()
    kept = resumed.x
    restored = StateSnapshot({"task": resumed}, left_out=["task.x", "task.y.z"])
    restore_changes(restored, changes_since(whole).section)
    assert resumed.x is kept and kept == [1] and (resumed.y.z, resumed.y.w) == (1, 3)


def test_a_change_without_its_object_is_named() -> None:
    task = Task(x=[])
    snapshot = StateSnapshot({"task": task})
    task.x.append(1)
    section = changes_since(snapshot).section
    for other in (Task(x=None), Task()):
        with pytest.raises(CheckpointError, match=r"state of `task\.x` cannot be restored"):
            restore_changes(StateSnapshot({"task": other}), section)


@pytest.mark.parametrize(
    ("made", "saved", "is_in_place"),
    [
        (torch.zeros(2, 3), torch.ones(2, 3), True),
        (torch.zeros(2, 3), torch.ones(3, 2).T, True),
        (torch.zeros(2, 3), torch.ones(2, 3).double(), False),
        (torch.zeros(900, 900)[:, 0], torch.ones(900), True),  # a placement that is not kept
        (torch.zeros(1).expand(3), torch.ones(1).expand(3), True),
        (torch.eye(2).to_sparse(), torch.ones(3, 3).to_sparse(), False),
    ],
    ids=range(6),
)
def test_values_are_put_into_the_memory_that_others_may_share(made: Any, saved: Any, is_in_place: bool) -> None:
    task, view = Task(x=made), made.detach()
    restore_changes(StateSnapshot({"task": task}), {"task.x": {"tensor": saved, "requires_grad": False}})
    assert task.x is made and torch.equal(made.to_dense(), saved.to_dense()) and made.layout is saved.layout
    is_same = view.shape == saved.shape and torch.equal(view.to_dense().to(saved.dtype), saved.to_dense())
    assert is_same is is_in_place
