"""Promise 12: sections that a stranger has written are errors, or change only what is state."""

from __future__ import annotations

import collections
import os
import subprocess
from collections.abc import Callable
from subprocess import run as run_a_program  # what the forger would like to call
from typing import Any

import msgpack
import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.restore import restore
from graphtrain.state.snapshot import StateSnapshot
from graphtrain.storage.encoding import Code, Found, Instance, Packed, Tensors, pack


class Task:
    """A step function and what it holds."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] = self.harmless

    def harmless(self) -> str:
        return "harmless"

    def __call__(self, model: Any, batch: Any) -> Any:
        return subprocess.run, run_a_program


class Dangerous:
    """Does something when it is made, and when it ends."""

    def __init__(self) -> None:
        raise AssertionError("called")

    def __del__(self) -> None:
        os.environ["FORGED"] = "1"


class Restoring:
    def __setstate__(self, state: Any) -> None:
        raise AssertionError("called")


def snapshot(task: Task) -> StateSnapshot:
    return StateSnapshot({"task": task, "model": torch.nn.Linear(2, 2), "deque": collections.deque([1])})


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


def bound(value: Any) -> dict[str, Any]:
    return {"task": {"set": {"call": value if isinstance(value, Packed) else packed(value)}}}


def instance(*by: Any, **holds: Any) -> Forged:
    return Forged(*by, holds=holds)


HERE = __name__
FORGED: dict[str, tuple[Any, str]] = {
    "a dtype of objects": (bound(tagged(Code.STANDARD, ["numpy.dtype", ["|O"]])), "a type of objects"),
    "a type that is not standard": (bound(tagged(Code.STANDARD, ["system", ["ls"]])), "`task` cannot be restored"),
    "a function of the system": (bound(Forged("named", "os", "system")), "there is no module `os` of yours"),
    "a function of Python's": (bound(Forged("named", "subprocess", "run")), "there is no module `subprocess` of yours"),
    "a function of torch's": (bound(Forged("named", "torch.serialization", "load")), "no module `torch.serialization`"),
    "a module in a module": (bound(Forged("named", HERE, "subprocess.run")), "there is no `subprocess.run`"),
    "a method": (bound(Forged("method", Forged("at", "model"), "load_state_dict")), "cannot be made"),
    "a partial of the system's": (bound(instance("partial", Forged("named", "os", "system"))), "no module `os`"),
    "an object with __del__": (bound(instance("object", HERE, "Dangerous")), "cannot be made"),
    "an object with __setstate__": (bound(instance("object", HERE, "Restoring")), "cannot be made"),
    "an object of a library": (
        bound(instance("object", "subprocess", "Popen")),
        "no module `subprocess` of yours",
    ),
    "a member of no enumeration": (bound(Forged("member", "os", "environ", "HOME")), "there is no `environ`"),
    "another class": ({"task": {"set": {"__class__": packed(1)}}}, "`__class__` is not part of its state"),
    "hooks of a module": ({"model": {"set": {"_forward_hooks": packed({})}}}, "is not part of its state"),
    "a method of a class": ({f"{HERE}:Task": {"set": {"__init__": packed(1)}}}, "not state"),
    "code of a function": (
        {"task.call.__func__": {"set": {"__code__": packed(b"")}}},
        "`__code__` of a function",
    ),
    "a global that nobody uses": ({"os:": {"set": {"system": packed(1)}}}, "it does not exist now"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_section_is_an_error(name: str) -> None:
    task = Task()
    section, message = FORGED[name]
    with pytest.raises(CheckpointError) as caught:
        restore(snapshot(task), section)
    assert message in str(caught.value)
    assert "FORGED" not in os.environ
