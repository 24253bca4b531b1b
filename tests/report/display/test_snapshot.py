"""Snapshots in files: what goes in comes out, and whatever else is there does no harm."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from graphtrain.report.display.choose import PlainLines
from graphtrain.report.display.notebook import as_html
from graphtrain.report.display.panel import Panel, plain_text
from graphtrain.report.snapshot import Snapshot
from tests.report.display.runs import snapshot

amounts = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
counts = st.integers(min_value=0, max_value=2**60)
names = st.text(max_size=30)
snapshots = st.builds(
    Snapshot,
    state=names,
    graph=names,
    position=names,
    step=st.none() | counts,
    epoch=st.none() | amounts,
    end=st.lists(names, max_size=3).map(tuple),
    done=st.none() | st.floats(0, 1),
    batch=st.none() | counts,
    epoch_batches=st.none() | counts,
    window=st.none() | st.tuples(counts, counts),
    metrics=st.dictionaries(names, st.floats() | st.integers(-(2**60), 2**60), max_size=5),
    texts=st.dictionaries(names, st.text(max_size=300), max_size=3),
    rates=st.dictionaries(names, amounts, max_size=3),
    elapsed_seconds=amounts,
    seconds_left=st.none() | amounts,
    memory_bytes=st.none() | counts,
    device=names,
    seconds=st.dictionaries(names, amounts, max_size=4),
)

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.just(10**400)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
fields = [one.name for one in dataclasses.fields(Snapshot)]


def same(one: Any, other: Any) -> bool:
    """Equal, NaN too, and of the same types."""
    return repr(one) == repr(other)


@pytest.mark.full
@given(snapshots)
@example(snapshot(metrics={"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0, "e": 1}))
def test_a_file_holds_all_of_it(one: Snapshot) -> None:
    text = json.dumps(one.as_plain(), allow_nan=False)
    assert same(Snapshot.from_plain(json.loads(text)), one)


def test_as_plain_names_every_field() -> None:
    assert list(snapshot().as_plain()) == fields


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_json_does_not_have_is_a_string_in_it(value: str) -> None:
    plain = snapshot(metrics={"loss": float(value)}).as_plain()
    assert plain["metrics"] == {"loss": value}


@pytest.mark.full
@given(st.dictionaries(st.sampled_from([*fields, "more"]), anything))
def test_whatever_stands_there_makes_a_snapshot_that_can_be_shown(found: dict[str, Any]) -> None:
    one = Snapshot.from_plain(found)
    assert json.dumps(one.as_plain(), allow_nan=False)
    assert len(plain_text(Panel(one), 60).splitlines()) <= 4
    said: list[str] = []
    lines = PlainLines(said.append)
    lines.begin()
    lines.end(one)
    assert all("\n" not in line for line in said)
    assert as_html(one).startswith("<div")


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("state", 3, "?"),
        ("step", 7.0, 7),
        ("step", 7.5, None),
        ("step", -1, None),
        ("step", True, None),
        ("step", "7", None),
        ("epoch", "nan", None),
        ("done", 7, 1.0),
        ("done", -0.1, None),
        ("end", "10 epochs", ()),
        ("end", ["10 epochs", 3], ("10 epochs",)),
        ("window", [1, 2, 3], None),
        ("window", [1, 4], (1, 4)),
        ("metrics", ["loss"], {}),
        ("metrics", {"loss": "low", "lr": 0.1, "x": None, "y": [1]}, {"lr": 0.1}),
        ("texts", "once", {}),
        ("texts", {"sample": "x" * 3000, "note": 3}, {"sample": "x" * 1000}),
        ("rates", {"batches": "inf", "samples": 3.0}, {"samples": 3.0}),
        ("seconds", {"data": -1, "train": 2.0}, {"train": 2.0}),
        ("seconds", {"data": 10**400, "train": 2.0}, {"train": 2.0}),
        ("elapsed_seconds", None, 0.0),
        ("device", None, "cpu"),
    ],
)
def test_what_does_not_fit_is_left_out(field: str, value: Any, read: Any) -> None:
    assert same(getattr(Snapshot.from_plain({field: value}), field), read)


@pytest.mark.parametrize("field", ["metrics", "rates", "seconds"])
def test_of_very_much_the_latest_is_read(field: str) -> None:
    found = getattr(Snapshot.from_plain({field: {f"{number}": 1.0 for number in range(1000)}}), field)
    assert list(found) == [str(number) for number in range(800, 1000)]
    assert list(getattr(Snapshot.from_plain({field: {"x" * 1000: 1.0}}), field)) == ["x" * 200]


@pytest.mark.parametrize("field", ["state", "graph", "position", "device"])
def test_of_a_long_text_the_beginning_is_read(field: str) -> None:
    assert getattr(Snapshot.from_plain({field: "x" * 1000}), field) == "x" * 200


def test_a_number_of_another_library_is_a_number() -> None:
    metrics: dict[str, Any] = {"a": numpy.float32(0.5), "b": torch.tensor(float("nan"))}
    assert snapshot(metrics=metrics).as_plain()["metrics"] == {"a": 0.5, "b": "nan"}


@pytest.mark.full
@given(st.dictionaries(names, st.just(0.0) | st.floats(1e-9, 1e9), max_size=5))
def test_shares_are_shares(seconds: dict[str, float]) -> None:
    shares = snapshot(seconds=seconds).shares
    assert set(shares) == {name for name, value in seconds.items() if value}
    assert not shares or math.isclose(sum(shares.values()), 1)
    assert all(0 < share <= 1 for share in shares.values())
