"""The state at the beginning of a run: what is listed, left out and marked, and which variables of modules count."""

from __future__ import annotations

import types
from typing import Any

import numpy
import pytest
import torch

from graphtrain.state.initial import InitialState, is_as_marked, is_marked, mark_of, structure_of, variables_of

COUNT = 0
TABLE: list[int] = []
HERE = __name__


class Plain:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Meter:
    def __init__(self) -> None:
        self.total, self.held, self.more, self.names = 1, [1], [2], {"a"}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "other": self.held, "more": [3], "names": {"a"}, "unset": 1}

    def load_state_dict(self, state: Any) -> None: ...


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


def test_globals_in_use() -> None:
    initial = InitialState({"step": counting}, left_out=[f"{HERE}:TABLE"])
    assert list(initial.globals_in_use()) == [(HERE, "COUNT", 0, 0)]
    assert initial.names_of_globals() == [(HERE, {"COUNT", "TABLE", "len"})]
    assert InitialState({"step": counting}, with_code=False).names_of_globals() == []
    assert InitialState({"step": counting}, with_code=False).imported is None


def test_what_is_reachable_from_data() -> None:
    shared = [1]
    data, task, saved = Plain(x=shared, step=counting), Plain(x=shared, z=[2]), Plain(y=[3])
    roots = {"task": task, "data": data, "saved": saved}
    initial = InitialState(roots, ["data", "saved"], covered=["saved"], left_out=["data.step"])
    assert [reached.path for reached in initial.listed("data")][:2] == ["data", "task.x"]
    assert list(initial.listed_data()) == ["data"] and initial.listed_data()["data"] == list(initial.listed("data"))
    assert "data.step" not in [reached.path for reached in initial.listed("data")]
    assert initial.names_of_globals("data") == [(HERE, {"COUNT", "TABLE", "len", "vars"})]
    assert [initial.name_of_data(each) for each in (data, task, saved, shared, Plain())] == ["data"] + [None] * 4


def test_attributes_that_a_state_dict_has_are_not_compared() -> None:
    """Those whose very value it has; that of another form or value is compared."""
    meter, plain = Meter(), Plain(x=1)
    initial = InitialState({"meter": meter, "plain": plain})
    states: Any = {}
    by_path = initial.reachable.by_path
    assert initial.ignored(by_path["meter"], states) == {"total", "held", "names"}
    assert list(states) == ["meter"]
    assert initial.ignored(by_path["meter"], {"meter": {"total": 2}}) == set()
    assert initial.ignored(by_path["plain"], states) == set() and list(states) == ["meter"]


def test_the_structure_of_a_module() -> None:
    model = torch.nn.BatchNorm1d(1)
    model.extra = torch.nn.ReLU()
    hook = model.register_forward_hook(lambda *_: None)
    found = structure_of(model, is_data=False)
    assert found == {"parameters": (), "buffers": (), "submodules": (id(model.extra),), "hooks": found["hooks"]}
    assert found["hooks"] == (id(model._forward_hooks[hook.id]),)
    found = structure_of(model, is_data=True)
    assert found["parameters"] == ("weight", "bias")
    assert found["buffers"] == ("running_mean", "running_var", "num_batches_tracked")
    assert structure_of(torch.nn.LazyLinear(1), is_data=False)["hooks"] == ()


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


def test_a_tensor_whose_memory_is_not_torchs_is_marked_by_its_shape() -> None:
    data = [torch.ones(2, 3).to_mkldnn()]
    reached = InitialState({"data": data}, ["data"]).reachable.by_path["data[0]"]
    assert mark_of(reached)[1] == "torch.Size([2, 3])"


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        (
            {"RATE": 0.1, "NAMES": ("a",), "KIND": int, "__table__": [], "helper": counting, "of_library": torch.ones},
            [],
        ),
        ({"b": [], "a": {}}, ["a", "b"]),
        ({"tensor": torch.ones(1), "pair": (1, [2])}, ["pair", "tensor"]),
    ],
)
def test_the_variables_of_a_module(variables: dict[str, Any], names: list[str]) -> None:
    module = types.ModuleType("late")
    vars(module).update(variables)
    assert variables_of(module) == names


def test_a_variable_is_what_a_function_of_the_module_assigns() -> None:
    code = """
COUNT = OTHER = INNER = STATIC = FOREIGN = 0
def add():
    global COUNT
    COUNT += 1
class Counter:
    def add(self):
        def inner():
            global INNER
            INNER = 1
    @staticmethod
    def static():
        global STATIC
        STATIC = 1
def foreign():
    global FOREIGN
    FOREIGN = 1
foreign.__module__ = "another"
"""
    module = types.ModuleType("late")
    exec(code, vars(module))  # noqa: S102 - as an import does
    assert variables_of(module) == ["COUNT", "INNER", "STATIC"]
