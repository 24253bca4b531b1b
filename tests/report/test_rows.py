"""The compact list of rows is a list of rows."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphtrain.report.rows import Rows

NUMBERS = st.one_of(st.floats(), st.integers(), st.integers(-3, 3), st.booleans())
ROWS = st.lists(st.dictionaries(st.sampled_from(["step", "epoch", "loss", "lr"]), NUMBERS, max_size=4), max_size=12)


def exact(row: dict[str, Any]) -> list[tuple[str, type, str]]:
    return [(name, type(value), repr(value)) for name, value in row.items()]


@pytest.mark.full
@given(ROWS)
def test_rows_come_back_as_they_were(rows: list[dict[str, Any]]) -> None:
    stored = Rows(rows)
    assert len(stored) == len(rows) and bool(stored) == bool(rows)
    assert [exact(row) for row in stored] == [exact(row) for row in rows]
    assert [exact(row) for row in reversed(stored)] == [exact(row) for row in reversed(rows)]
    assert [exact(row) for row in stored[1:-1]] == [exact(row) for row in rows[1:-1]]
    for number in range(-len(rows), len(rows)):
        assert exact(stored[number]) == exact(rows[number])
    for beyond in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            stored[beyond]


def test_a_row_that_was_read_can_be_changed() -> None:
    stored = Rows([{"step": 1, "loss": 0.5}, {"step": 10**30, "loss": math.nan}])
    stored[0]["loss"] = stored[1]["step"] = 7
    assert stored[0] == {"step": 1, "loss": 0.5} and stored[1]["step"] == 10**30


def test_a_row_takes_less_than_a_hundred_bytes() -> None:
    stored = Rows()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for step in range(10_000):
        stored.append({"step": step, "epoch": step / 100, "loss": 1 / (step + 1), "lr": 0.1 * step})
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / len(stored) < 100
