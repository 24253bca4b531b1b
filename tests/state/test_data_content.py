"""What data holds, compared whole within a budget, and by a sample beyond it."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from graphtrain.state import content, data_content
from graphtrain.state.baseline import Baseline
from graphtrain.state.content import ContentHash, content_hash
from graphtrain.state.data_content import DataContent


class Sample:
    def __init__(self, label: float) -> None:
        self.label = label


def compared(data: Any, other: Any) -> tuple[list[str], str]:
    """What a resume with other data says of a checkpoint made with some."""
    now, _ = DataContent(Baseline({"data": data}, ["data"])).comparison(())()
    result = DataContent(Baseline({"data": other}, ["data"])).compared(now, (), (), ())
    return result.changed, result.sampled


@pytest.mark.parametrize(
    "made",
    [
        lambda label: [torch.full((2,), float(number)) for number in range(99)] + [torch.tensor(label)],
        lambda label: [{"x": number, "y": 0.0} for number in range(99)] + [{"x": 99, "y": label}],
        lambda label: [Sample(0.0) for _ in range(99)] + [Sample(label)],
        lambda label: [(number, [number, 0.0]) for number in range(99)] + [(99, [99, label])],
        lambda label: numpy.array([0.0] * 99 + [label]),
        lambda label: torch.tensor([0.0] * 99 + [label]),
    ],
)
def test_data_that_differs_in_one_place_is_other_data(made: Any) -> None:
    assert compared(made(1.0), made(1.0)) == ([], "")
    (line,), _ = compared(made(1.0), made(2.0))
    assert line.startswith("data holds other values than when it was saved")


def test_beyond_the_budget_a_sample_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_content, "ContentHash", lambda place_of, *bounds, **pauses: ContentHash(place_of, 2**20))
    data = torch.zeros(2**20)
    assert compared(data, data.clone()) == ([], "data (4 MB) compared by sample")
    assert len(compared(data, data + 1)[0]) == 1


def test_items_beyond_the_budget_are_sampled() -> None:
    hashed = ContentHash(most_items=10_000)
    hashed.add([[number] for number in range(100_000)])
    assert not hashed.is_whole


def test_what_is_changed_while_it_is_compared_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(*arguments: Any) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    content_of_data = DataContent(Baseline({"data": [Sample(0.0)] * 99}, ["data"]))
    monkeypatch.setattr(ContentHash, "of", changed)
    assert content_of_data.comparison(())() == ({}, ["data was changed while it was compared"])


def test_layout_and_sharing_of_memory_make_no_difference() -> None:
    square = torch.arange(16.0).reshape(4, 4)
    assert content_hash(square.t()) == content_hash(square.t().contiguous())
    assert content_hash(square.numpy().T) == content_hash(square.numpy().T.copy())
    assert content_hash([1, 23]) != content_hash([12, 3])
    assert content.MOST_BYTES == 2**30 and content.MOST_ITEMS == 10**6


def test_a_memory_map_is_compared_by_its_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nowhere")
    file = tmp_path / "numbers"
    numpy.arange(6.0).tofile(file)
    before = content_hash(numpy.memmap(file))
    assert before == content_hash(numpy.memmap(file))
    numpy.arange(7.0).tofile(file)
    assert before != content_hash(numpy.memmap(file, shape=(48,)))
