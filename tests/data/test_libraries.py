"""Data of other libraries: Hugging Face's data sets, torch's data pipes, torchdata's loader."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterDataPipe

from graphtrain import Loader
from tests.data.cutting import AssertExact
from tests.data.test_lazy import COUNT, Noisy
from tests.data.test_reopening import Caching, Counting


def hugging_face(**options: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": [float(number) for number in range(COUNT)]}, **options)


def augmented(rows: dict[str, list[float]]) -> dict[str, list[float]]:
    return {"x": [value + random.random() + float(torch.rand(())) for value in rows["x"]]}


def stacked(rows: list[dict[str, float]]) -> torch.Tensor:
    return torch.tensor([row["x"] for row in rows])


def streamed(shuffled: bool) -> Any:
    stream = hugging_face().to_iterable_dataset(num_shards=2)
    return stream.shuffle(seed=4, buffer_size=5) if shuffled else stream


class Pipe(IterDataPipe[torch.Tensor]):
    """Draws while it is iterated over, and counts what it gives."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Any:
        for number in range(COUNT):
            self.given += 1
            yield torch.tensor([number + random.random() + self.given / 10])


def stateful(*arguments: Any, **options: Any) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(*arguments, **options)


HUGGING_FACE: dict[str, Callable[[], Any]] = {
    "Loader": lambda: Loader(hugging_face(), 2, shuffle=True, collate_fn=stacked),
    "Loader, set_transform": lambda: Loader(
        hugging_face().with_transform(augmented), 2, shuffle=True, collate_fn=stacked
    ),
    "DataLoader": lambda: DataLoader(hugging_face().with_transform(augmented), 2, shuffle=True, collate_fn=stacked),
    "stream": lambda: DataLoader(streamed(False), 2, collate_fn=stacked),
    "shuffled stream": lambda: DataLoader(streamed(True), 2, collate_fn=stacked),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "data pipe": lambda: DataLoader(Pipe(), 2),
    "shuffled data pipe": lambda: DataLoader(Pipe().shuffle(buffer_size=4), 2),
    "StatefulDataLoader": lambda: stateful(Noisy(), 2, shuffle=True),
    "StatefulDataLoader over data that counts": lambda: stateful(Counting(), 2, shuffle=True),
    "StatefulDataLoader over data that caches": lambda: stateful(Caching(), 2, shuffle=True),
}


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "name", [name if "stream" in name else pytest.param(name, marks=pytest.mark.sweep) for name in HUGGING_FACE]
)
def test_data_sets_of_hugging_face(name: str, tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(HUGGING_FACE[name], tmp_path)


@pytest.mark.first(1)
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("made", OTHERS.values(), ids=OTHERS)
def test_other_data(made: Callable[[], Any], tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(made, tmp_path)
