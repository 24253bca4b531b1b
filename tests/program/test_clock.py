"""The position of a run by its clock: what counts, in words and for rows, where a run is nested, and open windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphtrain import Graph
from graphtrain.program.bind import Program
from graphtrain.program.clock import RunClock
from tests.program.test_bind import EVALUATE, FIT, around, bound

WINDOWS = FIT.set("accumulate", every=4)


class Unsized:
    """Data without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter([torch.zeros(1)] * 5)


def at(graph: Graph, batches: int, data: Any = 10, **fields: Any) -> tuple[Program, RunClock]:
    """A program that has fetched batches to train on, with these values of fields, and its clock."""
    program = bound(graph)
    loader = [torch.zeros(1)] * data if isinstance(data, int) else data
    for path, each in program.by_path.items():
        if each.kind.epoch_fields is not None:
            each.instance.setup(loader, 0, torch.device("cpu"), False, lambda line: None)
            for _ in range(batches if "validate" not in path else 0):
                each.instance()
    for name, value in fields.items():
        path, _, field = name.rpartition(".")
        setattr(program.by_path[path].instance, field, value)
    return program, RunClock(program)


@pytest.mark.parametrize(
    ("graph", "batches", "fields", "text"),
    [
        (FIT, 0, {}, "step 0, epoch 0, batch 0"),  # the data is not opened
        (FIT, 5, {}, "step 0, epoch 0.50, batch 5/10"),
        (FIT, 12, {"step.steps": 12}, "step 12, epoch 1.20, batch 2/10"),
        (WINDOWS, 6, {"accumulate.count": 2}, "step 0, epoch 0.60, batch 6/10, window 2/4"),
        (WINDOWS, 6, {"accumulate.count": 2, "accumulate.window": 3}, "step 0, epoch 0.60, batch 6/10, window 2/3"),
        (around(FIT), 3, {"inner/step.steps": 3}, "step 3, epoch 0.30, batch 3/10"),
        (around(FIT).clock("turns", "inner.runs"), 3, {"inner.runs": 2}, "turns 2, step 0, epoch 0.30, batch 3/10"),
        (EVALUATE, 3, {}, "3 batches, 3 samples"),
    ],
)
def test_the_position_in_words(graph: Graph, batches: int, fields: dict[str, Any], text: str) -> None:
    assert at(graph, batches, **fields)[1].describe() == text


@pytest.mark.parametrize(
    ("unit", "field", "columns"),
    [
        ("turns", "inner.runs", ("turns",)),
        ("step", "inner.runs", ("around/step",)),  # a column that rows have
        ("passes", "inner/step.steps", ()),  # which the graph inside counts as well
        ("time", "inner/next_batch.seconds", ()),
    ],
)
def test_the_clock_of_a_graph_around_the_training_is_a_column(unit: str, field: str, columns: tuple[str, ...]) -> None:
    _, clock = at(around(FIT).clock(unit, field), 3, **{"inner.runs": 2})
    assert clock.columns == columns
    assert clock.outer_counts() == dict.fromkeys(columns, 2)
    assert clock.nested() == {"clock_of": "inner", "clocks": clock.outer_counts()}
