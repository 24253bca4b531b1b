"""The state at the beginning of a run: what is listed, left out and marked, and which variables of modules count."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from graphtrain.state.initial import InitialState, is_as_marked, is_marked, mark_of

COUNT = 0
TABLE: list[int] = []
HERE = __name__


class Plain:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def counting() -> int:
    return COUNT + len(TABLE)


class OwnTensor(torch.Tensor):
    pass


def test_what_is_left_out_and_what_was_replaced_is_not_listed() -> None:
    model, task = torch.nn.Linear(1, 1), Plain(x=[1], y=Plain(z=[2]), xs=[3])
    initial = InitialState({"model": model, "task": task, "step": counting}, left_out=["task.x", "task.y"])
    assert initial.excludes and not InitialState({"task": task}).excludes
    listed = [reached.path for reached in initial.listed()]
    assert {"model", "model.weight", "model.bias", "task", "task.xs"} <= set(listed)
    assert not {"task.x", "task.y", "task.y.z"} & set(listed)
    assert {"task.y.z", "task.x[0]", "task.xs[0]", f"{HERE}:COUNT", f"{HERE}:TABLE"} <= set(initial.places())
    assert list(initial.stateful) == ["model"]
    other = torch.nn.Linear(1, 1)
    initial.replace({"model": other})
    assert initial.stateful == {"model": other}
    assert [reached.path for reached in initial.listed()] == [path for path in listed if not path.startswith("model")]
    questions = (initial.is_left_out, initial.is_replaced, initial.is_excluded)
    assert [[is_so(path) for is_so in questions] for path in ("task.x[0]", "model.bias", "task.xs")] == [
        [True, False, True],
        [False, True, True],
        [False, False, False],
    ]
    whole = InitialState({"task": task})
    whole.replace({"task": Plain()})
    assert whole.excludes and not [each.path for each in whole.listed() if each.path.startswith("task")]


def test_what_is_marked() -> None:
    def made() -> list[Any]:
        own = torch.ones(1).as_subclass(OwnTensor)
        return [torch.ones(1), own, numpy.ones(1), numpy.array([None]), bytearray(b"a"), [1]]

    by_path = InitialState({"task": made(), "data": made()}, ["data"]).reachable.by_path
    assert [path for path, reached in by_path.items() if is_marked(reached)] == [
        "task[1]", "task[3]", "data[0]", "data[1]", "data[2]", "data[3]", "data[4]",
    ]  # fmt: skip
    covered = InitialState({"data": made()}, ["data"], covered=["data"]).reachable.by_path
    assert not any(map(is_marked, covered.values()))


def test_a_mark_changes_with_the_values_and_with_every_write() -> None:
    values: list[Any] = [torch.zeros(2**16), numpy.zeros(2**19, "i4"), numpy.zeros(8), bytearray(8)]
    with torch.inference_mode():
        values.append(torch.zeros(2))
    reachable = InitialState({"data": values}, ["data"]).reachable
    reached = [reachable.by_path[f"data[{number}]"] for number in range(5)]
    marks = {id(each.value): mark_of(each) for each in reached}
    assert all(is_as_marked(each, marks) for each in reached)
    assert not any(is_as_marked(each, {}) for each in reached)
    values[0].data[1] = 1  # not among the 1,024 elements that are looked at, and no write that is counted
    assert is_as_marked(reached[0], marks)
    values[0][1] = 2
    assert not is_as_marked(reached[0], marks)
    values[1][1] = 1  # as large as is compared whole
    values[2][1] = 1
    values[3][1] = 1
    with torch.inference_mode():
        values[4][1] = 1
    assert not any(is_as_marked(each, marks) for each in reached[1:])
    large = InitialState({"data": [numpy.zeros(2**20, "i4")]}, ["data"]).reachable.by_path["data[0]"]
    before = mark_of(large)
    large.value[1] = 1
    assert mark_of(large) == before
