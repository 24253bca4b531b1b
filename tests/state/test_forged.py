"""Sections that a stranger has written: each is an error that names what it is about, or changes only what is state."""

from __future__ import annotations

import collections
import os
import subprocess
from collections.abc import Callable
from subprocess import run as run_a_program  # what the forger would like to call
from typing import Any

import msgpack
import numpy
import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.baseline import Baseline
from graphtrain.storage.encoding import Code, Found, Instance, Packed, Tensors, pack


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


class Forged:
    """What a section has in the place of a value."""

    def __init__(self, *by: Any, holds: dict[str, Any] | None = None) -> None:
        self.by, self.holds = by, holds


class Forger:
    def describe(self, value: Any, path: str) -> Found | Instance | None:
        if not isinstance(value, Forged):
            return None
        return Found(value.by) if value.holds is None else Instance(value.by, value.holds)


def packed(value: Any) -> Packed:
    data = pack(value, "forged", tensors := Tensors("forged"), describer=Forger())
    return Packed("forged", data, tensors.named)


def tagged(code: Code, value: Any) -> Packed:
    return Packed("forged", msgpack.packb(msgpack.ExtType(code, msgpack.packb(value))), {})


def changed(path: str, change: Any) -> dict[str, Any]:
    return {path: change}


def bound(value: Any) -> dict[str, Any]:
    return changed("task", {"set": {"call": value if isinstance(value, Packed) else packed(value)}})


def instance(*by: Any, **holds: Any) -> Forged:
    return Forged(*by, holds=holds)


HERE = __name__
FORGED: dict[str, tuple[Any, str]] = {
    "bytes by their number": (bound(tagged(Code.BYTEARRAY, 10**12)), "where a bytes belongs"),
    "a pattern that is none": (bound(tagged(Code.STANDARD, ["Pattern", ["(", 0]])), "missing )"),
    "a zone that is another file": (
        bound(tagged(Code.STANDARD, ["ZoneInfo", ["../../../etc/passwd"]])),
        "the state of `task` cannot be restored",
    ),
    "a dtype that is none": (bound(tagged(Code.STANDARD, ["numpy.dtype", ["x"]])), "`task` cannot be restored"),
    "a dtype of objects": (bound(tagged(Code.STANDARD, ["numpy.dtype", ["|O"]])), "a type of objects"),
    "a type that is not standard": (bound(tagged(Code.STANDARD, ["system", ["ls"]])), "`task` cannot be restored"),
    "a function of the system": (bound(Forged("named", "os", "system")), "there is no module `os` of yours"),
    "a function of Python's": (bound(Forged("named", "subprocess", "run")), "there is no module `subprocess` of yours"),
    "a function of torch's": (bound(Forged("named", "torch.serialization", "load")), "no module `torch.serialization`"),
    "a function of graphtrain's": (bound(Forged("named", "graphtrain.errors", "GraphtrainError")), "of yours"),
    "what a module of yours imports": (
        bound(Forged("named", HERE, "run_a_program")),
        "does not define `run_a_program`",
    ),
    "a module in a module": (bound(Forged("named", HERE, "subprocess.run")), "there is no `subprocess.run`"),
    "a module that is not there": (
        bound(Forged("named", "antigravity", "geohash")),
        "there is no module `antigravity`",
    ),
    "a path to a library": (bound(Forged("at", "subprocess:run")), "does not exist now"),
    "a method": (bound(Forged("method", Forged("at", "model"), "load_state_dict")), "cannot be made"),
    "a partial of the system's": (bound(instance("partial", Forged("named", "os", "system"))), "no module `os`"),
    "a default of the system's": (
        bound(tagged(Code.DEFAULT, [msgpack.ExtType(Code.FOUND, msgpack.packb(["named", "os", "system"])), []])),
        "there is no module `os` of yours",
    ),
    "an object with __del__": (bound(instance("object", HERE, "Dangerous")), "cannot be made"),
    "an object with __setstate__": (bound(instance("object", HERE, "Restoring")), "cannot be made"),
    "an object of a library": (
        bound(instance("object", "subprocess", "Popen")),
        "there is no module `subprocess` of yours",
    ),
    "an object of a function": (bound(instance("object", HERE, "bound")), "cannot be made"),
    "a member of no enumeration": (bound(Forged("member", "os", "environ", "HOME")), "there is no `environ`"),
    "a class as a member": (bound(Forged("member", "subprocess", "Popen", "x")), "does not define `Popen`"),
    "another class": (changed("task", {"set": {"__class__": packed(1)}}), "`__class__` is not part of its state"),
    "another class in slots": (changed("slots", {"set": {"__class__": packed(1)}}), "`__class__`"),
    "an attribute in slots": (changed("slots", {"set": {"other": packed(1)}}), "it has no slot `other`"),
    "hooks of a module": (changed("model", {"set": {"_forward_hooks": packed({})}}), "is not part of its state"),
    "parameters taken out": (changed("model", {"set": {}, "removed": ["_parameters"]}), "is not part of its state"),
    "a method of a class": (changed(f"{HERE}:Task", {"set": {"__init__": packed(1)}}), "not state"),
    "code of a function": (
        changed("task.call.__func__", {"set": {"__code__": packed(b"")}}),
        "`__code__` of a function",
    ),
    "a global that nobody uses": (changed("os:", {"set": {"system": packed(1)}}), "no function of the module `os`"),
    "a global of yours": (
        changed(f"{HERE}:", {"set": {"HERE": packed(1)}}),
        f"no function of the module `{HERE}` uses `HERE`",
    ),
    "no path": (changed("nothing.of.this", {"set": {}}), "`nothing.of.this` cannot be restored: it does not exist now"),
    "another type": (changed("task.values", {"pairs": []}), "it is of another type now"),
    "another type of a change": (changed("task.values", ["x"]), "`task.values` cannot be restored"),
    "what is not encoded": (changed("task", {"set": {"call": 5}}), "cannot be made"),
    "a number that is too large": (bound(tagged(Code.SAME, [10**15])), "`task` cannot be restored"),
    "a negative number": (bound(tagged(Code.SAME, [-1])), "`task` cannot be restored"),
    "a number of another part": (bound(tagged(Code.SAME, ["other", 0])), "`task` cannot be restored"),
    "an unknown kind": (bound(instance("process")), "cannot be made"),
    "a view, which is never written": (
        bound(instance("view", Forged("at", "task.tensor"), [[2**40], [4], 0, 0], torch.float32, False, False)),
        "cannot be made",
    ),
    "too deep": (
        bound(Packed("forged", b"\x91" * 5_000 + b"\x90", {})),
        "`task` cannot be restored",
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
    "a fraction of nothing": (bound(tagged(Code.STANDARD, ["Fraction", [1, 0]])), "`task` cannot be restored"),
    "a number as text": (bound(tagged(Code.STANDARD, ["Decimal", ["no number"]])), "`task` cannot be restored"),
    "a key that cannot be one": (changed("task.table", {"items": packed([([], 1)])}), ""),
    "a longest length below none": (bound(tagged(Code.DEQUE, [-1, []])), "`task` cannot be restored"),
    "no section": (3, "the state outside the resources cannot be restored"),
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
    """A function that the step function's module defines: nothing is called."""
    task = Task()
    baseline(task).restore(bound(Forged("named", HERE, "changed")))
    assert task.call is changed


def test_a_huge_range_costs_nothing() -> None:
    task = Task()
    baseline(task).restore(bound(range(10**30)))
    assert task.call == range(10**30)
