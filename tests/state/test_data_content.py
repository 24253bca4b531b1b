"""What data holds, compared whole within a budget, and by a sample beyond it."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from graphtrain.state import data_content
from graphtrain.state.baseline import Baseline
from graphtrain.state.content import ContentHash
from graphtrain.state.data_content import DataContent


class Sample:
    def __init__(self, label: float) -> None:
        self.label = label


def compared(data: Any, other: Any) -> tuple[list[str], str]:
    """What a resume with other data says of a checkpoint made with some."""
    now, _ = DataContent(Baseline({"data": data}, ["data"])).contents(())
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


def test_what_is_changed_while_it_is_compared_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(*arguments: Any) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    content_of_data = DataContent(Baseline({"data": [Sample(0.0)] * 99}, ["data"]))
    monkeypatch.setattr(ContentHash, "of", changed)
    assert content_of_data.contents(()) == ({}, ["data was changed while it was compared"])


def test_only_what_is_compared_while_training_continues_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def content_hash_of(*arguments: Any, pauses: bool = False) -> ContentHash:
        asked.append(pauses)
        return ContentHash(*arguments, pauses=pauses)

    monkeypatch.setattr(data_content, "ContentHash", content_hash_of)
    content_of_data = DataContent(Baseline({"data": torch.zeros(2)}, ["data"]))
    saved, _ = content_of_data.contents(())
    content_of_data.compared(saved, (), (), ())
    assert asked == [True, False]


def test_what_a_resume_says_of_several_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def content_of(value: float, first: float = 0.0) -> DataContent:
        data = {"a": [torch.full((2,), first), torch.full((3,), value)], "b": torch.full((5,), value)}
        return DataContent(Baseline(data, ["a", "b"]))

    then, _ = content_of(1.0).contents(())
    assert (then["a"]["bytes"], then["b"]["bytes"]) == (20, 20) and list(then["a"]["parts"]) == ["a[0]", "a[1]"]
    now = content_of(2.0)
    lines = [f"{path} {data_content._OTHER}" for path in ("a[1]", "b")]
    assert now.compared(then, (), (), ()).changed == lines
    assert now.compared({}, (), (), ()).changed == now.compared({"c": then["a"]}, (), (), ()).changed == []
    assert now.compared(then, ["a[1] has changed in place"], (), ()).changed == lines[1:]
    assert now.compared(then, (), ["a[1]"], ()).changed == lines[1:]
    assert now.compared(then, (), (), ["b"]).changed == lines[:1]
    assert content_of(1.0, first=3.0).compared(then, (), (), ()).changed == [f"a[0] {data_content._OTHER}"]
    sampled = {name: {**content, "is_whole": False} for name, content in then.items()}
    assert now.compared(sampled, (), (), ()).sampled == "a (0 MB), b (0 MB) compared by sample"
    assert now.compared({"b": sampled["b"]}, (), (), ()).sampled == "b (0 MB) compared by sample"
    assert now.compared(then, (), (), ()).sampled == ""
    monkeypatch.setattr(data_content, "ContentHash", lambda place_of, **pauses: ContentHash(place_of, 24))
    found = now.compared(then, (), (), ())
    assert found.sampled == "b (0 MB) compared by sample" and data_content._shown_size(10**9) == "1 GB"
    assert data_content._shown_size(10**9 - 1) == "1000 MB"


def test_data_that_saves_itself_is_not_compared() -> None:
    data = [torch.zeros(1)]
    baseline = Baseline({"data": data, "saved": [torch.zeros(1)], "task": torch.zeros(1)}, ["data", "saved"], ["saved"])
    now, _ = DataContent(baseline).contents(())
    assert {name: list(content["parts"]) for name, content in now.items()} == {"data": ["data[0]"]}
