"""Promise 12: sections that a stranger has written are errors, or change only what is state."""

from __future__ import annotations

import collections
import os
import subprocess
from collections.abc import Callable
from subprocess import run as run_a_program  # what the forger would like to call
from typing import Any

import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.changes import restore_changes
from graphtrain.state.snapshot import StateSnapshot
from graphtrain.storage.encoding import Encoded, tagged


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


def encoded(value: Any) -> Encoded:
    return Encoded("forged", value)


def bound(*form: Any) -> dict[str, Any]:
    return {"task": {"set": {"call": encoded(tagged(*form))}}}


HERE = __name__
FORGED: dict[str, tuple[Any, str]] = {
    "a dtype of objects": (bound("numpy.dtype", "|O"), "a type of objects"),
    "a view of objects": (bound("view", False, tagged("at", "model.weight"), "|O", [1], [8], 0), "a view of objects"),
    "a type that is not standard": (bound("system", "ls"), "no value can be created"),
    "a function of the system": (bound("named", "os", "system"), "no module `os` of yours defines `system`"),
    "a function of Python's": (bound("named", "subprocess", "run"), "no module `subprocess` of yours defines `run`"),
    "a function of torch's": (bound("named", "torch.serialization", "load"), "no module `torch.serialization`"),
    "a module in a module": (bound("named", HERE, "subprocess.run"), "defines `subprocess.run`"),
    "a method": (bound("method", tagged("at", "model"), "load_state_dict"), "no value can be created"),
    "a partial of the system's": (bound("partial", tagged("named", "os", "system")), "no value can be created"),
    "an object with __del__": (bound("object", {}, HERE, "Dangerous"), "no value can be created"),
    "an object with __setstate__": (bound("object", {}, HERE, "Restoring"), "no value can be created"),
    "an object of a library": (
        bound("object", {}, "subprocess", "Popen"),
        "no module `subprocess` of yours",
    ),
    "a member of no enumeration": (
        bound("member", "os", "environ", "HOME"),
        "no module `os` of yours defines `environ`",
    ),
    "another class": ({"task": {"set": {"__class__": encoded(1)}}}, "`__class__` is not part of its state"),
    "hooks of a module": ({"model": {"set": {"_forward_hooks": encoded({})}}}, "is not part of its state"),
    "a method of a class": ({f"{HERE}:Task": {"set": {"__init__": encoded(1)}}}, "not state"),
    "code of a function": (
        {"task.call.__func__": {"set": {"__code__": encoded(b"")}}},
        "`__code__` of a function",
    ),
    "a global that nobody uses": ({"os:": {"set": {"system": encoded(1)}}}, "it does not exist now"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_section_is_an_error(name: str) -> None:
    task = Task()
    section, message = FORGED[name]
    with pytest.raises(CheckpointError) as caught:
        restore_changes(snapshot(task), section)
    assert message in str(caught.value)
    assert "FORGED" not in os.environ
