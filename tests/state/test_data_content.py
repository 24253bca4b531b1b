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
    now, _ = DataContent(Baseline({"data": data}, ["data"])).hashed(())
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
    assert content_of_data.hashed(()) == ({}, ["data was changed while it was hashed"])


def test_only_what_is_compared_while_training_continues_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def content_hash_of(*arguments: Any, pauses: bool = False) -> ContentHash:
        asked.append(pauses)
        return ContentHash(*arguments, pauses=pauses)

    monkeypatch.setattr(data_content, "ContentHash", content_hash_of)
    content_of_data = DataContent(Baseline({"data": torch.zeros(2)}, ["data"]))
    saved, _ = content_of_data.hashed(())
    content_of_data.compared(saved, (), (), ())
    assert asked == [True, False]


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


def test_what_a_resume_says_of_several_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def content_of(value: float, first: float = 0.0) -> DataContent:
        data = {"a": [torch.full((2,), first), torch.full((3,), value)], "b": torch.full((5,), value)}
        return DataContent(Baseline(data, ["a", "b"]))

    then, _ = content_of(1.0).hashed(())
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


def test_of_very_many_parts_one_hash_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_content, "_MOST_PARTS", 10)
    for count, parts in ((10, 10), (11, 1)):
        data = {f"x{number}": torch.full((1,), float(number)) for number in range(count)}
        task = type("Held", (), {})()
        vars(task).update(data)
        content_of_data = DataContent(Baseline({"data": task}, ["data"]))
        now, _ = content_of_data.hashed(())
        assert len(now["data"]["parts"]) == parts
        task.x5.add_(1)
        assert content_of_data.hashed(())[0] != now


def test_data_that_saves_itself_is_not_compared() -> None:
    data = [torch.zeros(1)]
    baseline = Baseline({"data": data, "saved": [torch.zeros(1)], "task": torch.zeros(1)}, ["data", "saved"], ["saved"])
    now, _ = DataContent(baseline).hashed(())
    assert {name: list(content["parts"]) for name, content in now.items()} == {"data": ["data[0]"]}
