"""What worker processes remember: reported where batches depend on it, and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader, Trainer
from graphtrain.data.loader import Generators, Reports
from tests.data.test_last_batch import resumed, trainer_over
from tests.data.test_reopening import Caching, Counting, Deep, LazilySeeded, Samples, Transformed


class Remembering(Samples):
    """Of every sample the last one before, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.past: dict[str, torch.Tensor] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        before = self.past.get("last", torch.zeros(()))
        self.past["last"] = super().__getitem__(index)
        return self.past["last"] + before / 10


class Decoding(Samples):
    """A cache of what is computed, as of decoded pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.decoded: dict[int, torch.Tensor] = {}
        self.hits = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.hits += index in self.decoded
        if index not in self.decoded:
            self.decoded[index] = super().__getitem__(index) * 0.5
        return self.decoded[index].clone()


class ByEpoch(Samples):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + self.epoch


class CountingCollation:
    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self.batches += 1
        return torch.stack(samples) + self.batches


class CountingByEpoch(ByEpoch):
    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.given += 1
        return super().__getitem__(index) + self.given


_given = 0


class CountingInAGlobal(Samples):
    def __getitem__(self, index: int) -> torch.Tensor:
        global _given
        _given += 1
        return super().__getitem__(index) + _given


class CountingInTheClass(Samples):
    given = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        type(self).given += 1
        return super().__getitem__(index) + self.given


def reports(data: Any, run_dir: Path, untils: tuple[str, ...] = ("1 batches", "6 batches", "12 batches")) -> list[str]:
    lines: list[str] = []
    trainer = trainer_over(data, run_dir, lines)
    for until in untils:
        trainer.run(until=until)
    return [line.removeprefix("a resume will not be exact: ") for line in lines if "worker processes" in line]


REPORTED: dict[str, tuple[Callable[[], Any], str]] = {
    "a counter": (lambda: Loader(Counting(), 2, num_workers=2), "train_data.dataset.given"),
    "a dictionary": (lambda: Loader(Remembering(), 2, num_workers=1), "train_data.dataset.past"),
    "told the epoch": (lambda: Loader(CountingByEpoch(), 2, num_workers=1), "train_data.dataset.given"),
    "persistent": (lambda: Loader(Counting(), 2, num_workers=1, persistent_workers=True), "train_data.dataset.given"),
    "a global": (
        lambda: Loader(CountingInAGlobal(), 2, num_workers=1),
        "train_data: the global `tests.data.test_memory:_given` changes",
    ),
    "a class attribute": (
        lambda: Loader(CountingInTheClass(), 2, num_workers=1),
        "train_data: the global `tests.data.test_memory:CountingInTheClass.given` changes",
    ),
    "collate_fn": (
        lambda: Loader(Samples(), 2, num_workers=1, collate_fn=CountingCollation()),
        "train_data.collate_fn.batches",
    ),
}


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize(("made", "path"), REPORTED.values(), ids=REPORTED)
def test_batches_that_depend_on_it_are_reported_once(made: Callable[[], Any], path: str, tmp_path: Path) -> None:
    (line,) = reports(made(), tmp_path)
    assert path in line
    assert line.endswith(
        "changes in worker processes, whose memory is not saved, and batches depend on it: use num_workers=0, or "
        "derive it from the index"
    )
    lines: list[str] = []
    trainer_over(made(), tmp_path, lines).run(until="13 batches")
    assert f"not exact: {line}" in resumed(lines)


SILENT: dict[str, Callable[[], Any]] = {
    "nothing": lambda: Loader(Samples(), 2, num_workers=1),
    "a pure cache": lambda: Loader(Decoding(), 2, num_workers=1),
    "an epoch that is told": lambda: Loader(ByEpoch(), 2, num_workers=1, persistent_workers=True),
    "a lazy generator": lambda: Loader(LazilySeeded(), 2, num_workers=1),
    "lazy generators of transforms": lambda: Loader(Transformed(), 2, num_workers=1),
    "a generator deep inside": lambda: Loader(Deep(), 2, num_workers=1),
    # Each is drawn once by a worker that lives for an epoch.
    "a cache of what is drawn": lambda: Loader(Caching(), 2, num_workers=1),
    # It is drawn again from the beginning of the epoch.
    "a counter in a DataLoader": lambda: DataLoader(Counting(), 2, num_workers=1),
    "a counter in this process": lambda: Loader(Counting(), 2),
}


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("made", SILENT.values(), ids=SILENT)
def test_what_is_exact_is_not_reported(made: Callable[[], Any], tmp_path: Path) -> None:
    assert reports(made(), tmp_path, ("6 batches",)) == []
    lines: list[str] = []
    trainer_over(made(), tmp_path, lines).run(until="7 batches")
    assert resumed(lines).endswith(": exact")


@pytest.mark.full
def test_a_cache_of_what_is_drawn_is_reported_where_it_outlives_its_epoch(tmp_path: Path) -> None:
    """In the second epoch the cache gives what was drawn in the first."""
    data = Loader(Caching(), 2, shuffle=True, num_workers=1, persistent_workers=True)
    (line,) = reports(data, tmp_path, ("14 batches",))
    assert line.startswith("train_data.dataset.cache changes in worker processes")


def test_validation_data_is_named(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    lines: list[str] = []
    trainer = Trainer(
        Graph.load("fit").set("finish", after="1 epochs"),
        run_dir=tmp_path,
        device="cpu",
        display=None,
        notify=lines.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        training_step=lambda model, batch: model(batch.reshape(-1, 1)).square().mean(),
        validation_step=lambda model, batch: {"loss": 0.0},
        train_data=[torch.ones(2)] * 3,
        val_data=Loader(Counting(), 2, num_workers=1),
    )
    trainer.run()
    assert any("val_data.dataset.given changes in worker processes" in line for line in lines)


def test_a_text_that_is_too_long_is_cut() -> None:
    reports = Reports(2)
    assert reports.read() == []
    reports.write(1, "a" + "ä" * 1000)
    reports.write(0, "short")
    first, second = reports.read()
    assert first == "short" and second == "a" + "ä" * 255


def test_a_generator_that_is_put_in_the_place_of_another_is_no_further_one() -> None:
    class Holder:
        generator: Any = None

    holder = Holder()
    generators = Generators([holder, None])
    assert generators.all() == []
    holder.generator = numpy.random.default_rng(1)
    assert generators.has_more() and len(generators.all()) == 1
    holder.generator = numpy.random.default_rng(2)
    assert not generators.has_more() and len(generators.all()) == 1
    assert generators.identities() == {id(holder.generator)}
