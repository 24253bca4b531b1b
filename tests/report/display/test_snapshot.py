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
    rates=st.dictionaries(names, amounts, max_size=3),
    elapsed_seconds=amounts,
    seconds_left=st.none() | amounts,
    memory_bytes=st.none() | counts,
    device=names,
    seconds=st.dictionaries(names, amounts, max_size=4),
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


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("state", 3, "?"),
        ("step", "7", None),
        ("epoch", "nan", None),
        ("end", "10 epochs", ()),
        ("window", [1, 4], (1, 4)),
        ("metrics", ["loss"], {}),
        ("rates", {"batches": None}, {}),
        ("elapsed_seconds", None, 0.0),
    ],
)
def test_what_does_not_fit_is_left_out(field: str, value: Any, read: Any) -> None:
    assert same(getattr(Snapshot.from_plain({field: value}), field), read)


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
