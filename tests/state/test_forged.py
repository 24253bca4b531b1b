"""Sections that a stranger has written: each is an error that names what it is about, or changes only what is state."""

from __future__ import annotations

import collections
import os
import subprocess
from collections.abc import Callable
from subprocess import run as run_a_program  # what the forger would like to call
from typing import Any

import numpy
import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.baseline import Baseline


class Task:
    """A step function and what it holds."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] = self.harmless
        self.table: dict[str, Any] = {}
        self.values = [1]
        self.weights = numpy.ones(4)
        self.tensor = torch.ones(4)
        self.generator = numpy.random.RandomState(1)
        self.bits = numpy.random.Generator(numpy.random.Philox(1))

    def harmless(self) -> str:
        return "harmless"

    def __call__(self, model: Any, batch: Any) -> Any:
        self.table["program"] = run_a_program
        return subprocess.run


class Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1


class Dangerous:
    """Does something when it is made, and when it ends."""

    def __init__(self) -> None:
        raise AssertionError("called")

    def __del__(self) -> None:
        os.environ["FORGED"] = "1"


class Restoring:
    def __setstate__(self, state: Any) -> None:
        raise AssertionError("called")


def baseline(task: Task) -> Baseline:
    return Baseline({"task": task, "slots": Slots(), "model": torch.nn.Linear(2, 2), "deque": collections.deque([1])})


def changed(path: str, change: Any, new: Any = ()) -> dict[str, Any]:
    return {"changed": {path: change}, "new": list(new)}


def bound(value: Any, new: Any = ()) -> dict[str, Any]:
    return changed("task", {"set": {"call": value}}, new)


HERE = __name__
FORGED: dict[str, tuple[Any, str]] = {
    "bytes by their number": (
        bound(("new", 0), [{"is": "bytearray", "values": 10**12}]),
        "an object described as bytearray cannot be made",
    ),
    "a pattern that is none": (bound(("pattern", "(", 0)), "a pattern cannot be compiled"),
    "a zone that is another file": (bound(("zone", "../../../etc/passwd")), "the state of `task` cannot be restored"),
    "a dtype that is none": (bound(("dtype of an array", "x")), "the state of `task` cannot be restored"),
    "a function of the system": (bound(("named", "os", "system")), "there is no module `os` of yours"),
    "a function of Python's": (bound(("named", "subprocess", "run")), "there is no module `subprocess` of yours"),
    "a function of torch's": (bound(("named", "torch.serialization", "load")), "no module `torch.serialization`"),
    "a function of graphtrain's": (bound(("named", "graphtrain.errors", "GraphtrainError")), "of yours"),
    "what a module of yours imports": (bound(("named", HERE, "run_a_program")), "does not define `run_a_program`"),
    "a module in a module": (bound(("named", HERE, "subprocess.run")), "there is no `subprocess.run`"),
    "a module that is not there": (bound(("named", "antigravity", "geohash")), "there is no module `antigravity`"),
    "a path to a library": (bound(("at", "subprocess:run")), "does not exist now"),
    "a partial of the system's": (
        bound(
            ("new", 0), [{"is": "partial", "function": ("named", "os", "system"), "arguments": ["ls"], "keywords": {}}]
        ),
        "there is no module `os` of yours",
    ),
    "a partial of nothing": (
        bound(("new", 0), [{"is": "partial", "function": 3, "arguments": [], "keywords": {}}]),
        "callable",
    ),
    "an object with __del__": (
        bound(("new", 0), [{"is": "object", "class": [HERE, "Dangerous"], "parts": {}}]),
        "cannot be made",
    ),
    "an object with __setstate__": (
        bound(("new", 0), [{"is": "object", "class": [HERE, "Restoring"], "parts": {}}]),
        "cannot be made",
    ),
    "an object of a library": (
        bound(("new", 0), [{"is": "object", "class": ["subprocess", "Popen"], "parts": {}}]),
        "there is no module `subprocess` of yours",
    ),
    "an object of a function": (
        bound(("new", 0), [{"is": "object", "class": [HERE, "bound"], "parts": {}}]),
        "cannot be made",
    ),
    "a method of a library": (bound(("method", ("at", "model"), "load_state_dict")), "cannot be made"),
    "the method of a value": (bound(("method", ("built-in", "str"), "join")), "cannot be made"),
    "a special method": (bound(("method", ("at", "model"), "__setattr__")), "cannot be made"),
    "a member of no enumeration": (bound(("member", "os", "environ", "HOME")), "there is no `environ`"),
    "a class as a member": (bound(("member", "subprocess", "Popen", "x")), "does not define `Popen`"),
    "another class": (changed("task", {"set": {"__class__": ("named", HERE, "Slots")}}), "`__class__` is no state"),
    "another class in slots": (changed("slots", {"set": {"__class__": ("named", HERE, "Task")}}), "`__class__`"),
    "an attribute in slots": (changed("slots", {"set": {"other": 1}}), "it has no slot `other`"),
    "hooks of a module": (changed("model", {"set": {"_forward_hooks": {}}}), "`_forward_hooks` is no state"),
    "parameters taken out": (changed("model", {"set": {}, "removed": ["_parameters"]}), "`_parameters` is no state"),
    "a method of a class": (
        changed(f"{HERE}:Task", {"set": {"__init__": ("at", "task.call.__func__")}}),
        "no state",
    ),
    "code of a function": (changed("task.call.__func__", {"set": {"__code__": b""}}), "`__code__` of a function"),
    "a global that nobody uses": (changed("os:", {"set": {"system": 1}}), "no function of the module `os`"),
    "a global of yours": (changed(f"{HERE}:", {"set": {"HERE": 1}}), f"no function of the module `{HERE}` uses `HERE`"),
    "no path": (changed("nothing.of.this", {"set": {}}), "`nothing.of.this` cannot be restored: it does not exist now"),
    "another type": (changed("task.values", {"pairs": []}), "it is of another type now"),
    "another type of a change": (changed("task.values", ["x"]), "`task.values` cannot be restored"),
    "a number that is too large": (bound(("new", 10**30)), "cannot be made"),
    "a negative number": (bound(("new", -1), [{"is": "list", "parts": []}]), "cannot be made"),
    "no description": (bound(("new", 0), [None]), "`task` cannot be restored"),
    "an unknown kind": (bound(("new", 0), [{"is": "process"}]), "an object described as process cannot be made"),
    "a view beyond its memory": (
        bound(
            ("new", 0),
            [
                {
                    "is": "tensor",
                    "requires_grad": False,
                    "grad": None,
                    "of": ("at", "task.tensor"),
                    "view": ([2**40], [1], 0),
                    "dtype": torch.float32,
                }
            ],
        ),
        "a view does not fit",
    ),
    "a view before its memory": (
        bound(
            ("new", 0),
            [{"is": "array", "of": ("at", "task.weights"), "view": ([4], [8], -8), "dtype": "<f8"}],
        ),
        "`task` cannot be restored",
    ),
    "a view as objects": (
        bound(("new", 0), [{"is": "array", "of": ("at", "task.weights"), "view": ([4], [8], 0), "dtype": "|O"}]),
        "`task` cannot be restored",
    ),
    "a view of itself": (
        bound(
            ("new", 0),
            [
                {
                    "is": "tensor",
                    "requires_grad": False,
                    "grad": None,
                    "of": ("new", 0),
                    "view": ([1], [1], 0),
                    "dtype": torch.float32,
                }
            ],
        ),
        "objects are nested more than 100 deep",
    ),
    "too deep": (
        bound(("new", 0), [{"is": "list", "parts": [("new", number + 1)]} for number in range(5_000)]),
        "objects are nested more than 100 deep",
    ),
    "an array of another shape": (changed("task.weights", {"array": numpy.ones(1)}), "its shape is (4,) now"),
    "a position beyond the numbers of a generator": (
        changed(
            "task.generator",
            {
                "state": {
                    "bit_generator": "MT19937",
                    "state": {"key": numpy.zeros(624, "uint32"), "pos": 10**6},
                    "has_gauss": 0,
                    "gauss": 0.0,
                }
            },
        ),
        "at its number",
    ),
    "a position beyond the buffer of a generator": (
        changed(
            "task.bits",
            {"state": numpy.random.Philox(1).state | {"buffer_pos": 10**6}},
        ),
        "at its number",
    ),
    "a state of another generator": (changed("task.generator", {"state": (1, 2)}), "`task.generator` cannot be"),
    "a fraction of nothing": (bound(("fraction", 1, 0)), "`task` cannot be restored"),
    "a number as text": (bound(("text", "Decimal", "no number")), "`task` cannot be restored"),
    "a key that cannot be one": (
        changed("task.table", {"pairs": [[("new", 0), 1]]}, [{"is": "list", "parts": []}]),
        "",
    ),
    "a longest length below none": (
        bound(("new", 0), [{"is": "deque", "parts": [], "maxlen": -1}]),
        "`task` cannot be restored",
    ),
    "no section": ({"changed": 3, "new": []}, "the state beside the resources cannot be restored"),
    "a section without new objects": ({"changed": {}}, "the state beside the resources cannot be restored"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_section_is_an_error(name: str) -> None:
    task = Task()
    section, message = FORGED[name]
    with pytest.raises(CheckpointError) as caught:
        baseline(task).restore(section)
    assert message in str(caught.value)
    assert "FORGED" not in os.environ


def test_what_can_be_bound_is_of_the_users_own() -> None:
    """A function that the step function's module defines, a method of an object that is there: nothing is called."""
    task = Task()
    baseline(task).restore(bound(("method", ("at", "task"), "harmless")))
    assert task.call() == "harmless"
    baseline(task).restore(bound(("named", HERE, "changed")))
    assert task.call is changed


def test_a_huge_range_costs_nothing() -> None:
    task = Task()
    baseline(task).restore(bound(("range", 0, 10**30, 1)))
    assert task.call == range(10**30)
