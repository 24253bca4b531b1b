"""What the code of data changes in worker processes, whose memory no checkpoint has, is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Subset

from graphtrain import Loader
from graphtrain.data.loader import Generators
from tests.data.test_last_batch import resumed, trainer_over
from tests.data.test_reopening import Counting, LazilySeeded, Samples


class CountingCollation:
    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, samples: list[torch.Tensor]) -> torch.Tensor:
        self.batches += 1
        return torch.stack(samples) + self.batches


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


CHANGED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a counter": (lambda: Loader(Counting(), 2, num_workers=2), [".dataset.given"]),
    "of a data set inside": (lambda: Loader(Subset(Counting(), [0, 1]), 2, num_workers=2), [".dataset.dataset.given"]),
    "a global": (
        lambda: Loader(CountingInAGlobal(), 2, num_workers=1),
        [": the global `tests.data.test_memory:_given`"],
    ),
    "a class attribute": (lambda: Loader(CountingInTheClass(), 2, num_workers=1), [".dataset.given"]),
    "collate_fn": (
        lambda: Loader(Samples(), 2, num_workers=1, collate_fn=CountingCollation()),
        [".collate_fn.batches"],
    ),
    "nothing": (lambda: Loader(Samples(), 2, num_workers=1), []),
    "a lazy generator": (lambda: Loader(LazilySeeded(), 2, num_workers=1), []),
    "a counter in this process": (lambda: Loader(Counting(), 2), []),
}


@pytest.mark.parametrize(("made", "names"), CHANGED.values(), ids=CHANGED)
def test_what_the_code_of_data_changes_in_workers_is_named(made: Callable[[], Any], names: list[str]) -> None:
    end = " changes in worker processes, whose memory is not saved: use num_workers=0, or derive it from the index"
    assert made().unsaved() == [f"{name}{end}" for name in names]


@pytest.mark.second(1)
@pytest.mark.full
def test_a_save_and_a_resume_report_it(tmp_path: Path) -> None:
    lines: list[str] = []
    trainer_over(Loader(Counting(), 2, num_workers=1), tmp_path, lines).run(until="3 batches")
    (line,) = [line for line in lines if "worker processes" in line]
    assert line.startswith("a resume will not be exact: train_data.dataset.given changes")
    lines.clear()
    trainer_over(Loader(Counting(), 2, num_workers=1), tmp_path, lines).run(until="4 batches")
    assert "not exact: train_data.dataset.given changes in worker processes" in resumed(lines)


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
