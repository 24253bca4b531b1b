"""Where the time goes: every moment of a run is counted once, under the activity it was spent on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.program.stopwatch import Stopwatch


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_every_moment_is_counted_once() -> None:
    clock = Clock()
    watch = Stopwatch(lambda now: None, clock)

    def fetch() -> int:
        clock.time += 2
        return 0

    data = watch.timed(fetch, "data")
    watch.start()
    for _ in range(3):
        data()
        clock.time += 5
    watch.enter("validate")
    clock.time += 7
    with watch.measure("save"):
        clock.time += 11
    watch.leave()
    assert watch.seconds() == {"train": 15.0, "data": 6.0, "validate": 7.0, "save": 11.0}
    watch.stop()
    clock.time += 1000
    assert sum(watch.seconds().values()) == 39.0, "it stands still"


class Slow:
    """Batches that take their time."""

    def __init__(self, batches: int, seconds: float) -> None:
        self._batches, self._seconds = batches, seconds

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._batches):
            time.sleep(self._seconds)
            yield torch.ones(2, 1)


def slow_trainer(run_dir: Path | None = None, **seconds: float) -> Trainer:
    model = torch.nn.Linear(1, 1)

    def step(model: Any, batch: Any) -> Any:
        time.sleep(seconds.get("train", 0.0))
        return model(batch).mean()

    return Trainer(
        Graph.load("fit").set("finish", after="1 epochs"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=Slow(5, seconds.get("data", 0.0)),
        val_data=Slow(5, seconds.get("validate", 0.0)),
        training_step=step,
        validation_step=lambda model, batch: {"zero": 0.0},
    )


@pytest.mark.parametrize("activity", ["data", "train", "validate"])
def test_the_slow_part_of_a_run_is_named(activity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    def wait(seconds: float) -> None:
        clock.time += seconds

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(Stopwatch.__init__, "__defaults__", (clock,))
    trainer = slow_trainer(**{activity: 0.03})
    trainer.run()
    assert trainer.seconds[activity] == pytest.approx(5 * 0.03)
    shares = trainer.snapshot().shares
    assert shares[activity] == pytest.approx(1) == sum(shares.values())


def test_saving_is_counted_and_the_times_are_summed_over_interruptions(tmp_path: Path) -> None:
    first = slow_trainer(tmp_path, data=0.03)
    first.run(until="3 batches")
    assert first.seconds["save"] > 0
    second = slow_trainer(tmp_path, data=0.03)
    second.run()
    assert second.seconds["data"] >= 5 * 0.03, "two more batches, after three of another process"


def test_a_body_that_trains_is_training_and_one_that_does_not_is_an_activity() -> None:
    model = torch.nn.Linear(1, 1)
    outer = Graph.loads(
        'format = 1\nname = "folds"\nstart = "fold"\n[nodes]\nfold = { graph = "fit" }\n[edges]\nfold = ["end"]\n'
    ).set("fold/finish", after="1 epochs")
    trainer = Trainer(
        outer,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=Slow(4, 0.02),
        val_data=Slow(4, 0.02),
        training_step=lambda model, batch: model(batch).mean(),
    )
    trainer.run()
    assert "fold" not in trainer.seconds
    assert trainer.seconds["data"] >= 4 * 0.02 and trainer.seconds["validate"] >= 4 * 0.02
