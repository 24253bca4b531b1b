"""Batches that are drawn again are reported where that takes long."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphtrain.data import redrawing
from graphtrain.data.source import source_of


class Endless:
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (torch.tensor([number]) for number in itertools.count())


def reopened(drawn: int, seconds_a_batch: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    data: Any = source_of(Endless(), seed=0, saving=False, notify=lines.append)
    _, _, state = data.open(2)
    clock = itertools.count()
    monkeypatch.setattr(redrawing.time, "monotonic", lambda: next(clock) * seconds_a_batch)
    assert next(data.reopen(2, drawn, state)).item() == drawn
    return lines


def test_a_few_seconds_are_not_worth_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reopened(1000, 0.001, monkeypatch) == []


def test_a_long_one_is_reported_with_an_estimate_and_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = reopened(1200, 0.02, monkeypatch)
    assert first == (
        "100 of 1,200 batches of epoch 3 are drawn again, 22 s left; a graphtrain.Loader, or data with a state_dict, "
        "resumes at once"
    )
    assert others == [
        "600 of 1,200 batches of epoch 3 are drawn again, 12 s left",
        "1,100 of 1,200 batches of epoch 3 are drawn again, 2 s left",
    ]
