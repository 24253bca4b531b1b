"""Promise 18: what a display, the status and a snapshot show is what the run is doing, and where the time goes."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Display, Edge, Graph, Node, Outcome, Run, Snapshot, Trainer, fit, node, progress
from tests.training.tiny import FIT, batches, squared, tiny


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its seconds, which pass in `time.sleep` alone, and at once."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


class Seen(Display):
    """Remembers what it was shown."""

    interval_seconds = 0.0

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.snapshots: list[Snapshot] = []

    def begin(self, snapshot: Snapshot | None = None) -> None:
        self.calls.append("begin")

    def show(self, snapshot: Snapshot) -> None:
        self.calls.append("show")
        self.snapshots.append(snapshot)

    def end(self, snapshot: Snapshot) -> None:
        self.calls.append("end")
        self.snapshots.append(snapshot)


def followed(trainer: Trainer, **run: Any) -> list[Snapshot]:
    """A snapshot after each transition."""
    found: list[Snapshot] = []
    trainer.run(trace=lambda explained: found.append(trainer.snapshot()), **run)
    return found


def test_the_place_of_every_batch() -> None:
    shown = followed(tiny(fit(epochs=2, accumulate=4), train_data=batches(6)))
    fetched = [one for one in shown if one.position == "next_batch"]
    assert [(one.batch, one.epoch_batches, one.window) for one in fetched[:6]] == [
        (1, 6, None),
        (2, 6, (1, 4)),
        (3, 6, (2, 4)),
        (4, 6, (3, 4)),
        (5, 6, None),
        (6, 6, (1, 4)),
    ]
    assert len(fetched) == 12 and fetched[5].done == 0.5
    assert {one.state for one in shown} == {"running"} and {one.end for one in shown} == {("2 epochs",)}


def test_inside_an_evaluation_the_place_of_training_stays() -> None:
    data = {"a": batches(3), "b": batches(2)}
    shown = followed(tiny(fit(epochs=1), val_data=data))
    inside = [one for one in shown if one.position == "validate/eval_batch"]
    assert {(one.batch, one.evaluation) for one in inside} == {(5, "val")}
    assert [(one.evaluation_batch, one.evaluation_batches) for one in inside] == [(n, 5) for n in range(1, 6)]
    assert Snapshot.from_plain(json.loads(json.dumps(inside[-1].as_plain()))) == inside[-1]
    assert shown[-1].evaluation is None


class Unsized:
    """Three batches, and no length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(batches(3))


def test_an_evaluation_without_a_length_is_shown_by_its_batches() -> None:
    trainer = tiny(val_data=Unsized())
    trainer.run(before="validate/eval_batch")
    assert (trainer.snapshot().evaluation_batch, trainer.snapshot().evaluation_batches) == (1, None)


def test_until_stands_beside_the_end_of_the_run() -> None:
    seen = Seen()
    tiny(display=seen, train_data=batches(6)).run(until="3 batches")
    last = seen.snapshots[-1]
    assert (last.end, last.done, last.until, last.until_done) == (("2 epochs",), 0.25, ("3 batches",), 1.0)
    assert (seen.calls[0], seen.calls[-1]) == ("begin", "end") and {*seen.calls[1:-1]} <= {"show"}
    assert last.state == "stopped"


def test_any_unit_that_grows_has_a_rate() -> None:
    @node
    class CountTokens:
        """Count what a batch holds."""

        tokens: int = progress(0)

        def __call__(self, batch: Any) -> None:
            self.tokens += batch.numel() * 5

    graph = FIT.insert("count", CountTokens, between=("next_batch", "train_batch")).clock("tokens", "count.tokens")
    trainer = tiny(graph.set("finish", after="60 tokens"), training_step=slow(0.01), train_data=batches(6))
    trainer.run()
    rates = trainer.snapshot().rates
    assert set(rates) == {"batches", "samples", "tokens"}
    assert rates["samples"] == pytest.approx(2 * rates["batches"])
    assert rates["tokens"] == pytest.approx(10 * rates["batches"])


def test_the_status_holds_the_snapshot(tmp_path: Path) -> None:
    trainer = tiny(run_dir=tmp_path)
    trainer.run(until="1 epochs")
    status = json.loads((tmp_path / "status.json").read_text())
    assert Snapshot.from_plain(status).step == 5 == status["step"]
    assert status["state"] == "stopped" and "snapshot" not in status, "each field once"
    assert status["trained"][0] == 5


# ---- displays


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (BrokenPipeError(), []),
        (RuntimeError("no such colour"), ["the display is off: it raised RuntimeError: no such colour"]),
    ],
)
def test_a_display_that_fails_is_left_alone_and_the_run_continues(error: Exception, lines: list[str]) -> None:
    class Broken(Seen):
        def show(self, snapshot: Snapshot) -> None:
            raise error

    broken, said = Broken(), list[str]()
    assert tiny(display=broken, said=said).run() is Outcome.FINISHED
    assert broken.calls == ["begin"]
    assert [line for line in said if "display" in line] == lines


def test_a_slow_display_leaves_most_of_the_time_to_training(clock: list[float]) -> None:
    """After a picture that took 50 ms there is none for ten times as long."""
    at = list[float]()

    class Slow(Seen):
        def show(self, snapshot: Snapshot) -> None:
            at.append(clock[0])
            time.sleep(0.05)

    tiny(fit(epochs=30), display=Slow(), training_step=slow(0.01)).run()
    assert at == pytest.approx([0.0, 0.55, 1.1, 1.65], abs=0.04)


def test_single_transitions_are_not_shown() -> None:
    seen = Seen()
    tiny(display=seen).advance(20)
    assert seen.calls == []


# ---- where the time goes


def slow(seconds: float) -> Any:
    def training_step(model: Any, batch: Any) -> torch.Tensor:
        time.sleep(seconds)
        return squared(model, batch)

    return training_step


class SlowData:
    """Batches that take their time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[Any]:
        for batch in batches():
            time.sleep(self._seconds)
            yield batch


ONE = fit(epochs=1)


def around(body: Graph) -> Graph:
    return Graph("folds", "fold", {"fold": Node("fold", "nested", body=body)}, {"fold": (Edge("end"),)})


@pytest.mark.first(3)
@pytest.mark.parametrize("graph", [ONE, around(ONE)], ids=["alone", "in a body"])
@pytest.mark.parametrize("activity", ["data", "train", "validate"])
@pytest.mark.usefixtures("clock")
def test_the_slow_part_of_a_run_is_named(activity: str, graph: Graph) -> None:
    """A body that trains is training, and one that does not is an activity."""
    data = {
        "train_data": SlowData(0.03 * (activity == "data")),
        "val_data": SlowData(0.03 * (activity == "validate")),
        "training_step": slow(0.03 * (activity == "train")),
        "validation_step": lambda model, batch: {"zero": 0.0},
    }
    trainer = tiny(graph, **data)
    trainer.run()
    others = {name: 0.0 for name in ("data", "train", "validate", "save") if name in trainer.seconds}
    assert trainer.seconds == pytest.approx({**others, activity: 5 * 0.03}, abs=1e-9)


@pytest.mark.usefixtures("clock")
def test_times_are_summed_over_interruptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: time.sleep(0.01))
    graph = ONE.set("checkpoint", mode="sync")
    first = tiny(graph, tmp_path, train_data=SlowData(0.03))
    first.run(until="3 batches")
    assert first.seconds["save"] >= 0.01
    before = first.snapshot()
    assert before.elapsed_seconds == pytest.approx(sum(first.seconds.values()))
    seconds = first.progress["next_batch"]["seconds"]
    assert 0 < seconds < 1000
    second = tiny(graph, tmp_path, train_data=SlowData(0.03))
    second.run()
    after = second.snapshot()
    assert before.elapsed_seconds < after.elapsed_seconds
    assert after.elapsed_seconds == pytest.approx(sum(second.seconds.values()))
    assert second.seconds["data"] == pytest.approx(5 * 0.03), "two more batches, after three of another process"
    assert second.progress["next_batch"]["seconds"] > seconds


@pytest.mark.usefixtures("clock")
def test_time_between_two_calls_is_no_time_of_the_run() -> None:
    trainer = tiny(training_step=slow(0.1))
    trainer.advance(5)
    between = trainer.snapshot().elapsed_seconds
    time.sleep(0.5)
    assert trainer.snapshot().elapsed_seconds == between
    trainer.run(until="1 epochs")
    assert trainer.snapshot().elapsed_seconds == pytest.approx(5 * 0.1)


@pytest.mark.full
def test_seconds_of_nodes_are_estimated_from_a_few_visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of its own, which each look moves by a microsecond and each training step by 2 ms more."""
    microseconds = itertools.count()

    def training_step(model: Any, batch: Any) -> torch.Tensor:
        for _ in range(2000):
            next(microseconds)
        return squared(model, batch)

    monkeypatch.setattr(time, "perf_counter", lambda: next(microseconds) / 1e6)
    data = {"train_data": [torch.ones(2, 1)] * 100, "val_data": batches(3)}
    tiny(fit(epochs=4, save_every="never"), tmp_path, training_step=training_step, **data).run()
    seconds = Run(tmp_path).activity.at(-1)["seconds"]
    assert {"next_batch", "step", "end_epoch"} <= seconds.keys()
    assert seconds.pop("train_batch") == pytest.approx(400 * 0.002, rel=0.01)
    assert seconds.pop("validate/eval_batch") == pytest.approx(4 * 3 * 0.002, rel=0.01)
    assert sum(seconds.values()) < 0.01
