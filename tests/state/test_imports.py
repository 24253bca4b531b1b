"""Which modules that a run imports have variables, and which tensors keep a graph."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from graphtrain.state.graphs import keeps_graph
from graphtrain.state.initial import lines_about_modules, variables_of

CONSTANTS = """
from __future__ import annotations
import functools, logging, re
from typing import TypeVar
T = TypeVar("T")
RATE, NAMES, PATTERN, LOG, Pairs = 0.1, ("a", "b"), re.compile("a"), logging.getLogger("a"), list[tuple[int, int]]
__all__ = ["helper", "Helper"]
@functools.lru_cache
def helper(x: int) -> int:
    local = x
    return local
class Helper:
    limit = 3
"""
VARIABLES = {
    "assigned": "COUNT = 0\ndef add():\n    global COUNT\n    COUNT += 1",
    "assigned in a method": "COUNT = 0\nclass Counter:\n    def add(self):\n        global COUNT\n        COUNT = 1",
    "list": "COUNT = []",
    "object": "class Counter: ...\nCOUNT = Counter()",
    "tensor": "import torch\nCOUNT = torch.zeros(1)",
}


def module_of(code: str) -> types.ModuleType:
    module = types.ModuleType("late")
    exec(code, vars(module))  # noqa: S102 - as an import does
    return module


def test_a_module_with_constants_functions_and_classes_has_no_variables() -> None:
    assert variables_of(module_of(CONSTANTS)) == []


@pytest.mark.parametrize("code", VARIABLES.values(), ids=VARIABLES)
def test_variables_of_a_module(code: str) -> None:
    assert variables_of(module_of(code)) == ["COUNT"]


def test_modules_of_the_users_own_are_reported_and_those_of_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    known = frozenset(sys.modules)
    for name, file in {"late": "/home/late.py", "torch.compiled": "/home/compiled.py", "other": torch.__file__}.items():
        module = module_of("A, B, C, D = [], [], [], []")
        module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
    assert lines_about_modules(known) == [
        "the module late was imported during the run, so its variables (A, B, C, ...) are not saved: import it before "
        "the run begins"
    ]
    assert lines_about_modules(frozenset(sys.modules)) == []


def test_a_graph_is_kept_until_a_backward_pass_has_freed_it() -> None:
    weight, frozen = torch.ones(3, requires_grad=True), torch.ones(3)
    total = torch.zeros(1)
    for _ in range(2_000):
        total = total + weight.sum()
    assert keeps_graph(total) and keeps_graph(weight * 2) and keeps_graph((frozen * weight).view(3, 1))
    loss = (weight * weight).sum()
    kept = loss + 1
    loss.backward()
    assert not keeps_graph(kept) and not keeps_graph(loss) and not keeps_graph(weight) and not keeps_graph(frozen)


def test_looking_at_a_graph_computes_nothing_again() -> None:
    calls = []

    def part(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.sin().exp()

    out = checkpoint(part, torch.ones(3, requires_grad=True), use_reentrant=False)
    assert isinstance(out, torch.Tensor)
    assert keeps_graph(out) and calls == [1]
    out.sum().backward()
    assert not keeps_graph(out)
