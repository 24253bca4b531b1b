"""Memory that grows is reported, with its bytes per 1,000 batches; anything else is not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.trainer import watchers
from graphtrain.trainer.observer import MemoryTrend

MIB = 1 << 20


def lines_of(samples: Iterable[tuple[int, float]]) -> list[str]:
    trend = MemoryTrend()
    lines = [trend.add(batches, int(mebibytes * MIB)) for batches, mebibytes in samples]
    assert len(trend._samples) <= 64
    return [line for line in lines if line]


def test_steady_growth_is_reported_once_with_its_rate() -> None:
    """Also if it is slow against the noise, and however long the run is."""
    rng = random.Random(0)
    for rate, noise in ((0.5, 0.0), (0.05, 3.0), (0.002, 1.0)):
        (line,) = lines_of((number, 400 + rate * number + noise * rng.random()) for number in range(0, 200_000, 40))
        number, unit = line.split("grows by ")[1].split()[:2]
        told = float(number) / {"MiB": 1, "KiB": 1024}[unit]
        assert told == pytest.approx(1000 * rate, rel=0.15), line
        assert "per 1,000 batches" in line


def test_what_comes_to_a_rest_is_no_growth() -> None:
    rng = random.Random(0)
    steps = range(0, 20_000, 40)
    assert lines_of((number, 400 + 100 * rng.random()) for number in steps) == []
    assert lines_of((number, 400 + 300 * (number > 2_000)) for number in steps) == [], "a jump"
    assert lines_of((number, 400 + 0.5 * (number % 400)) for number in range(0, 20_000, 24)) == [], "freed now and then"
    assert lines_of((number, 4000 + 0.001 * number) for number in steps) == [], "a share too small to matter"
    assert lines_of((number, 400 + 40 * number) for number in range(15)) == [], "too early to tell"
    trend = MemoryTrend()
    assert trend.add(1, None) == trend.add(1, 5) == trend.add(1, 10**12) == ""


@pytest.mark.full
def test_a_run_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = itertools.count(400 * MIB, MIB)
    monkeypatch.setattr(watchers, "memory_bytes", lambda device: next(memory))
    monkeypatch.setattr(watchers.StatusFile, "interval_seconds", 0.0)
    monkeypatch.setattr(watchers, "_LEAST_REST", 0)
    model, lines = torch.nn.Linear(2, 1), list[str]()
    Trainer(
        Graph.load("fit").set("finish", after="15 epochs"),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(2, 2)] * 100,
        training_step=lambda model, batch: model(batch).square().mean(),
        display=None,
        notify=lines.append,
    ).run()
    assert len([line for line in lines if line.startswith("memory grows by ")]) == 1
