"""Where the time goes: every moment of a run is counted once, under the activity it was spent on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.program.bind import ProgramNode
from graphtrain.program.stopwatch import NodeTimes, Stopwatch
from tests.program.test_bind import bound


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


def test_it_continues_inside_an_activity_and_after_an_interruption() -> None:
    clock = Clock()
    watch = Stopwatch(lambda now: None, clock)
    watch.load({"train": 10.0, "validate": 1.0})
    watch.start(inside="validate")
    clock.time += 4
    watch.leave()
    clock.time += 2
    watch.stop()
    assert watch.seconds() == {"train": 12.0, "validate": 5.0}


def test_ticks_come_after_timed_visits_and_no_sooner_than_asked() -> None:
    clock, ticks = Clock(), []

    def tick(now: float) -> None:
        ticks.append(now)
        watch.next_tick = now + 10

    watch = Stopwatch(tick, clock)
    visits = [watch.timed(lambda: 0, "data"), watch.ticking(lambda: 0)]
    visits[0]()
    assert ticks == [], "none was asked for"
    watch.next_tick = 0
    for _ in range(25):
        clock.time += 1
        visits[int(clock.time) % 2]()
    assert ticks == [101.0, 111.0, 121.0]


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


def test_what_is_not_counted_while_it_stands_still_or_is_paused() -> None:
    clock = Clock()
    watch = Stopwatch(lambda now: None, clock)
    with watch.measure("save"):
        clock.time += 1
    with watch.paused():
        clock.time += 1
    assert watch.seconds() == {"train": 0.0} and watch.running() == 0.0
    watch.start()
    with watch.paused("data"):  # inside of a timed visit, which counts all of its time
        clock.time += 2
    assert watch.seconds() == {"train": 2.0, "data": -2.0}
    watch.enter("validate")
    clock.time += 4
    with watch.paused("data"):
        clock.time += 8
    assert watch.seconds() == {"train": 2.0, "data": -2.0, "validate": 4.0}
    watch.leave()
    assert (watch.running(), watch.running(clock.time + 1)) == (4.0, 5.0)


def test_times_before_an_interruption_are_taken_over_where_they_can_be() -> None:
    watch = Stopwatch(lambda now: None, Clock())
    watch.timed(lambda: 0, "data")
    watch.load({"train": 5.0, "validate": 1, "save": -1.0, "odd": "x", "far": 1e12, "data": 2.0})  # type: ignore[dict-item]
    assert watch.seconds() == {"train": 5.0, "data": 2.0, "validate": 1.0}
    watch.load({"train": 3.0})
    assert watch.seconds() == {"train": 3.0, "data": 0.0, "validate": 0.0}


def test_visits_that_fetch_data_are_timed_where_no_activity_is_around_them() -> None:
    program, clock, ticks = bound(Graph.load("fit")), Clock(), []
    watch = Stopwatch(ticks.append, clock)

    def visit() -> int:
        clock.time += 3
        return 7

    watch.next_tick = 0.0
    wrapped = {path: watch.wrap(program.by_path[path], visit) for path in ("next_batch", "validate/next_batch", "step")}
    assert wrapped["step"] is visit
    assert wrapped["next_batch"]() == wrapped["validate/next_batch"]() == 7
    assert watch.spent == {"data": 3.0} and ticks == [103.0, 106.0]


def test_the_times_of_nodes_are_estimated_from_some_visits() -> None:
    program, clock = bound(Graph.load("fit")), Clock()
    times = NodeTimes(clock)
    took, counts = {"next_batch": 2.0, "step": 1.0}, [0] * len(program.nodes)

    def transition(node: ProgramNode) -> Callable[[], int]:
        def visit() -> int:
            clock.time += took[node.path]
            counts[node.index] += 1
            return 7

        return visit

    counters = [[node.index] for node in program.nodes]
    table = times.over(program.nodes, [*map(transition, program.nodes)], counters, counts)

    def run(*paths: str) -> list[int]:
        return [table[program.by_path[path].index]() for path in paths]

    assert run("next_batch", "step") == [7, 7] and times.seconds() == {}, "the first visits are not timed"
    run("next_batch", "step")
    assert times.seconds() == {"next_batch": 4.0, "step": 2.0}
    for _ in range(127):
        run("next_batch")
    run("step")
    took["step"] = 7.0
    run("step")  # between other batches
    assert times.seconds() == {"next_batch": 2.0 * 129, "step": 4.0}
    run("next_batch", "step")  # the 130th batch is timed, and what follows it
    assert times.seconds() == {"next_batch": 2.0 * 130, "step": 3.0 * 5}
