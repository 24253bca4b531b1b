"""What the engine promises to the rest of the house and nothing outside shows cheaply: clocks, digests, shares."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphtrain import fit
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.resume import session
from graphtrain.storage.state_files import StagedState, state_digest
from tests.training.tiny import batches, squared, tiny


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_every_moment_is_counted_once_under_the_activity_it_was_spent_on() -> None:
    clock = Clock()
    watch = Stopwatch(clock)

    def fetch() -> int:
        clock.time += 2
        return 0

    node: Any = SimpleNamespace(kind=SimpleNamespace(family="data"), bypassed=False)
    node.scope = SimpleNamespace(activity=None)
    data = watch.wrap(node, fetch)
    watch.start()
    for _ in range(3):
        data()
        clock.time += 5
    watch.enter("validate")
    clock.time += 7
    with watch.measure("save"):
        clock.time += 11
    watch.enter()
    assert watch.seconds() == {"train": 15.0, "data": 6.0, "validate": 7.0, "save": 11.0}
    watch.stop()
    clock.time += 1000
    assert sum(watch.seconds().values()) == 39.0, "it stands still"


def test_the_time_left_is_that_of_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs of 10 batches of 0.2 s."""
    clock = Clock()
    monkeypatch.setattr(session, "Stopwatch", functools.partial(Stopwatch, clock=clock))
    left: dict[float, float | None] = {}

    def step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        shown = trainer.snapshot()
        left[shown.epoch] = shown.seconds_left
        clock.time += 0.2
        return squared(model, batch)

    trainer = tiny(fit(epochs=3), training_step=step, train_data=batches(10), not_state="training_step")
    trainer.run()
    assert left[0.1] is None
    for fetched in range(4, 31):  # of which the last is not trained on
        assert left[fetched / 10] == pytest.approx(0.2 * (fetched - 1) * (30 - fetched) / fetched)


def test_a_digest_is_the_same_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.ones(3)
    sections: dict[str, Any] = {
        "resources": {"model": {"weight": torch.ones(2)}},
        "slots": {"both": [shared, shared]},
    }
    expected = state_digest(sections)
    on_cpu = StagedState(sections, {}, {})
    monkeypatch.setattr("graphtrain.storage.state_files._device_name", lambda device: "cuda:0")
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    staged = StagedState(sections, {}, {})
    monkeypatch.undo()
    assert "devices" in staged.parts["local"] and "local" not in on_cpu.parts
    assert staged.digest({}) == on_cpu.digest({}) == expected
    assert state_digest({**sections, "slots": {"both": [shared, shared.clone()]}}) != expected
