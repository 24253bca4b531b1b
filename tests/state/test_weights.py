"""Saved weights that do not fit a module."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain.state.weights import dtype_and_shape, misfits


class Tied(torch.nn.Module):
    """Two names of one weight, an empty parameter, a lazy one, and an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = torch.nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.empty = torch.nn.Parameter(torch.ones(0))
        self.nothing = torch.nn.Parameter(torch.ones(0))
        self.lazy = torch.nn.LazyLinear(1, bias=False)

    def get_extra_state(self) -> Any:
        return 3


WHOLE = {
    "first.weight": torch.ones(2, 2),
    "first.bias": torch.ones(2),
    "second.weight": torch.ones(2, 2),
    "empty": torch.ones(0),
    "nothing": torch.ones(0),
    "lazy.weight": torch.ones(1, 9),
}


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, []),
        ({"second.weight": None}, []),
        ({"first.weight": None}, []),
        ({"first.weight": None, "second.weight": None}, ["missing: first.weight", "missing: second.weight"]),
        ({"first.bias": None}, ["missing: first.bias"]),
        ({"empty": None}, ["missing: empty"]),
        ({"lazy.weight": None}, ["missing: lazy.weight"]),
        ({"other": torch.ones(1)}, ["unknown to the module: other"]),
        ({"_extra_state": 1}, []),
        ({"first.bias": torch.ones(3)}, ["first.bias: float32 (3,) in the file, float32 (2,) in the module"]),
        ({"first.bias": torch.ones(2).long()}, ["first.bias: int64 (2,) in the file, float32 (2,) in the module"]),
        ({"first.bias": torch.ones(2).half()}, []),
        ({"first.bias": "text"}, ["first.bias: str in the file, float32 (2,) in the module"]),
        ({"lazy.weight": "text"}, []),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], lines: list[str]) -> None:
    saved = {name: value for name, value in (WHOLE | changes).items() if value is not None}
    expected = [f"    {line.replace('missing:', 'missing in the file:')}" for line in lines]
    assert misfits(Tied(), saved) == "\n".join(expected)


@pytest.mark.parametrize(("count", "shown", "last"), [(10, 10, ""), (11, 11, "    ... and 1 more")])
def test_of_many_misfits_ten_are_named(count: int, shown: int, last: str) -> None:
    lines = misfits(torch.nn.ReLU(), {f"x{number}": torch.ones(1) for number in range(count)}).split("\n")
    assert lines[:10] == [f"    unknown to the module: x{number}" for number in range(10)]
    assert len(lines) == shown and (not last or lines[10] == last)
    assert dtype_and_shape(torch.ones(2, 3, dtype=torch.bfloat16)) == "bfloat16 (2, 3)" and dtype_and_shape(3) == "int"
