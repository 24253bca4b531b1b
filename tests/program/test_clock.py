"""The position of a run by its clock: what counts, in words and for rows, where a run is nested, and open windows."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trigger
from graphtrain.program.bind import Program
from graphtrain.program.clock import Evaluation, RunClock
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


def test_what_rows_and_rates_are_made_of() -> None:
    _, clock = at(FIT, 12, **{"step.steps": 11, "next_batch.seconds": 2.5})
    assert clock.counts() == {"batches": 12, "samples": 12}
    assert (clock.trained(), clock.step_and_epoch()) == ((12, 2.5), (11, 1.2))
    assert (clock.count("seconds"), clock.count("nothing"), clock.epoch_length()) == (Fraction(5, 2), None, 10)
    assert (clock.window(), clock.columns, clock.outer_counts(), clock.nested()) == (None, (), {}, {})
    _, alone = at(EVALUATE, 3)
    assert (alone.trained(), alone.step_and_epoch(), alone.epoch_length()) == ((3, 0.0), (0, 0.0), None)


def test_the_ends_and_how_far_they_are() -> None:
    _, clock = at(FIT.set("finish", after=["4 epochs", "100 steps", "1 hours"]), 12, **{"step.steps": 25})
    assert [str(term) for term in clock.ends] == [str(term) for term in clock.shown_ends]
    done = {str(term): share for term, share in clock.ends_done().items()}
    assert (done["4 epochs"], done["100 steps"]) == (0.3, 0.25) and done["1 hours"] < 0.01
    limits = {str(term): share for term, share in clock.done(Trigger(["24 batches", "5 steps"])).items()}
    assert limits == {"24 batches": 0.5, "5 steps": 1.0}
    _, nested = at(around(FIT), 3)
    assert (nested.ends, [str(term) for term in nested.shown_ends]) == ((), ["10 epochs"])
    assert (nested.ends_done(), list(nested.done(Trigger("6 batches")).values())) == ({}, [0.5])


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


def test_a_moment_has_the_units_of_the_graphs_that_train_around_a_position() -> None:
    counts = {"epochs": Fraction(3, 10), "batches": 3, "epoch_batches": 3, "samples": 3, "steps": 2}
    program, clock = at(FIT, 3, **{"step.steps": 2})
    assert clock.moment(program.by_path["step"].index) == counts, "neither seconds nor runs of nodes"
    assert clock.moment(program.by_path["validate/next_batch"].index) == counts
    nested, inner = at(around(FIT), 3, **{"inner/step.steps": 2})
    expected = {f"inner/{unit}": value for unit, value in counts.items()}
    assert inner.moment(nested.by_path["inner/validate/next_batch"].index) == expected
    assert inner.moment(nested.by_path["inner"].index) == {}


def test_the_clock_is_that_of_the_training_around_a_position_or_of_the_body_just_left() -> None:
    two = around(FIT).insert("other", graph=FIT, after="inner")
    program, clock = at(two, 0)
    for path, position, expected in (
        ("", "other/step", "other/"),
        ("", "inner", "other/"),  # nothing trains around it: the clock stays
        ("inner", "inner", "inner/"),
        ("", "other/validate/next_batch", "other/"),
    ):
        clock.go_by(path, program.by_path[position].index)
        assert program.clocked.prefix == expected


def test_the_evaluation_around_a_position() -> None:
    program, clock = at(FIT, 3, **{"validate.runs": 2})
    inside, outside = program.by_path["validate/eval_batch"].index, program.by_path["step"].index
    fetched = program.by_path["validate/next_batch"].instance
    assert (clock.evaluation(inside), clock.evaluation(outside)) == (Evaluation("val", 0, None), None)
    fetched()
    assert clock.evaluation(inside) == Evaluation("val", 1, 10)
