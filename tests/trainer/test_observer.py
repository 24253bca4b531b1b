"""Snapshots: what a display and the status show is what the run is doing."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import CheckpointError, Graph, Outcome, Trainer, node, progress
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.report.snapshot import Display, Snapshot
from graphtrain.resume import session
from graphtrain.storage.run_files import RunFiles
from graphtrain.trainer import watchers


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


FIT = replace(Graph.load("fit"), allow=("G504",))  # whose end is "never", in runs until an amount


def trainer(graph: Graph | None = None, display: Display | None = None, **more: Any) -> Trainer:
    model = torch.nn.Linear(1, 1)
    return Trainer(
        graph if graph is not None else Graph.load("fit").set("finish", after="2 epochs"),
        seed=0,
        run_dir=more.pop("run_dir", None),
        display=display,
        notify=more.pop("notify", lambda line: None),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        **{
            "train_data": [torch.ones(2, 1)] * 6,
            "training_step": lambda model, batch: model(batch).mean(),
            **more,
        },
    )


@pytest.fixture
def at_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn is no matter of time: no rest is kept between two drawings."""
    monkeypatch.setattr(watchers, "_LEAST_REST", 0)


@pytest.mark.usefixtures("at_every_tick")
def test_a_display_sees_every_batch_and_the_end() -> None:
    seen = Seen()
    graph = Graph.load("fit").set("accumulate", every=4).set("finish", after="2 epochs")
    trainer(graph, seen).run()
    assert seen.calls[0] == "begin" and set(seen.calls[1:-1]) == {"show"} and seen.calls[-1] == "end"
    fetched = [one for one in seen.snapshots if one.position == "next_batch"]
    assert len(fetched) == 12
    places = [(one.batch, one.epoch_batches, one.window) for one in fetched[:6]]
    assert places == [(1, 6, None), (2, 6, (1, 4)), (3, 6, (2, 4)), (4, 6, (3, 4)), (5, 6, None), (6, 6, (1, 4))]
    assert {one.position for one in seen.snapshots} <= {"next_batch", "end_epoch", "end"}
    assert [one.state for one in seen.snapshots] == ["running"] * (len(seen.snapshots) - 1) + ["finished"]
    assert fetched[5].done == 0.5 and seen.snapshots[-1].done == 1.0
    assert seen.snapshots[-1].end == ("2 epochs",)
    assert "epoch/loss" in seen.snapshots[-1].metrics


@pytest.mark.usefixtures("at_every_tick")
def test_inside_an_evaluation_the_place_of_training_stays() -> None:
    seen = Seen()
    data = [torch.ones(2, 1)] * 3
    trainer(display=seen, val_data=data).run(until="1 epochs")
    inside = [one for one in seen.snapshots if one.position.startswith("validate/")]
    assert [one.position for one in inside].count("validate/next_batch") == 3
    assert {one.batch for one in inside} == {6}


def test_a_display_that_fails_is_left_alone_and_the_run_continues() -> None:
    class Broken(Seen):
        def show(self, snapshot: Snapshot) -> None:
            raise BrokenPipeError

    broken = Broken()
    trainer(display=broken).run()
    assert broken.calls == ["begin"]


def test_any_failure_of_a_display_is_reported_once() -> None:
    class Wrong(Seen):
        def show(self, snapshot: Snapshot) -> None:
            raise RuntimeError("no such colour")

    said: list[str] = []
    assert trainer(display=Wrong(), notify=said.append).run() is Outcome.FINISHED
    assert [one for one in said if "display" in one] == ["the display is off: it raised RuntimeError: no such colour"]


def test_a_slow_display_leaves_most_of_the_time_to_training() -> None:
    class Slow(Seen):
        def show(self, snapshot: Snapshot) -> None:
            super().show(snapshot)
            time.sleep(0.05)

    slow = Slow()
    run = trainer(Graph.load("fit").set("finish", after="30 epochs"), slow)
    run.run()
    drawn = slow.calls.count("show")
    assert 0.05 * drawn + 0.5 * (drawn - 1) <= run.snapshot().elapsed_seconds, "drawing, and ten times that of rest"


def test_a_status_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    run = trainer(Graph.load("fit").set("checkpoint", every="never"), run_dir=tmp_path, notify=said.append)
    run.run(until="1 batches")

    def full(self: RunFiles, status: Any) -> None:
        raise CheckpointError("cannot write status.json: No space left on device")

    monkeypatch.setattr(RunFiles, "write_status", full)
    run._run.watchers.begin(is_shown=False)
    run._run.watchers.tick()
    assert said[-1] == "cannot write status.json: No space left on device; the run continues"


def test_what_makes_data_is_counted_as_data_after_a_resume(tmp_path: Path) -> None:
    @node(family="data")
    def augment(batch: Any) -> None:
        """Stand-in."""

    graph = Graph.load("fit").set("finish", after="1 epochs")
    trainer(graph, run_dir=tmp_path).run(until="3 batches")
    again = trainer(graph.insert("augment", augment, before="train_batch"), run_dir=tmp_path)
    assert again.run() is Outcome.FINISHED
    assert again.seconds["data"] > 0


def test_until_stands_beside_the_end_of_the_run() -> None:
    from graphtrain.report.display.panel import parts

    seen = Seen()
    trainer(display=seen).run(until="3 batches")
    last = seen.snapshots[-1]
    assert (last.end, last.done) == (("2 epochs",), 0.25)
    assert (last.until, last.until_done) == (("3 batches",), 1.0)
    texts = parts(last)
    assert (texts.done, texts.ends) == (0.25, ("until 3 batches (100 %)",))
    endless = trainer(FIT.set("finish", after="never"))
    endless.run(until="3 batches")
    texts = parts(endless.snapshot())
    assert (texts.done, texts.ends) == (1.0, ("until 3 batches",)), "the bar shows the only share there is"


def test_elapsed_is_the_time_of_the_run(tmp_path: Path) -> None:
    from graphtrain.report.display.panel import parts

    first = trainer(run_dir=tmp_path)
    first.run(until="3 batches")
    before = first.snapshot()
    assert before.earlier_seconds == 0.0
    assert before.elapsed_seconds == pytest.approx(sum(first.seconds.values()))
    assert parts(before).elapsed.endswith(" elapsed")
    second = trainer(run_dir=tmp_path)
    second.run()
    after = second.snapshot()
    assert 0 < after.earlier_seconds <= before.elapsed_seconds < after.elapsed_seconds
    assert after.elapsed_seconds == pytest.approx(sum(second.seconds.values()))
    assert parts(after).elapsed == "0 s elapsed (0 s since it was resumed)"


def test_time_between_two_calls_is_no_time_of_the_run() -> None:
    run = trainer()
    run.advance(5)
    between = run.snapshot().elapsed_seconds
    time.sleep(0.05)
    assert run.snapshot().elapsed_seconds == between
    run.advance(1)
    assert run.snapshot().elapsed_seconds < between + 0.05


def test_single_transitions_are_not_shown() -> None:
    seen = Seen()
    stepped = trainer(display=seen)
    stepped.advance(20)
    assert seen.calls == []


def test_any_unit_that_grows_has_a_rate() -> None:
    @node
    class CountTokens:
        """Count what a batch holds."""

        tokens: int = progress(0)

        def __call__(self, batch: Any) -> None:
            self.tokens += batch.numel() * 5

    graph = (
        Graph.load("fit")
        .insert("count", CountTokens, between=("next_batch", "train_batch"))
        .clock("tokens", "count.tokens")
        .set("finish", after="60 tokens")
    )

    def slow_step(model: Any, batch: Any) -> Any:
        time.sleep(0.01)
        return model(batch).mean()

    run = trainer(graph, training_step=slow_step)
    run.run()
    rates = run.snapshot().rates
    assert set(rates) == {"batches", "samples", "tokens"}
    assert rates["samples"] == pytest.approx(2 * rates["batches"])
    assert rates["tokens"] == pytest.approx(10 * rates["batches"])


def test_the_status_holds_the_snapshot(tmp_path: Path) -> None:
    run = trainer(run_dir=tmp_path)
    run.run(until="1 epochs")
    status = json.loads((tmp_path / "status.json").read_text())
    assert Snapshot.from_plain(status).step == 6 == status["step"]
    assert status["state"] == "stopped" and "snapshot" not in status, "each field once"
    assert status["trained"][0] == 6


def test_memory_is_that_of_this_process() -> None:
    run = trainer()
    before = run.snapshot().memory_bytes
    assert before is not None
    ballast = torch.ones(64 * 2**20)
    after = run.snapshot().memory_bytes  # the system may have taken other pages back meanwhile: half is enough
    assert after is not None and after - before > 0.5 * ballast.numel() * 4


# ---- inside an evaluation


@pytest.mark.usefixtures("at_every_tick")
def test_how_far_an_evaluation_is_is_shown() -> None:
    from graphtrain.report.display.choose import PlainLines
    from graphtrain.report.display.panel import parts

    seen = Seen()
    data = {"a": [torch.ones(2, 1)] * 3, "b": [torch.ones(2, 1)] * 2}
    trainer(display=seen, val_data=data).run(until="1 epochs")
    inside = [one for one in seen.snapshots if one.evaluation is not None]
    assert {one.evaluation for one in inside} == {"val"}
    counts = [(one.evaluation_batch, one.evaluation_batches) for one in inside if one.position == "validate/next_batch"]
    assert counts == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    shown = inside[-1]
    assert parts(shown).place == "batch 5/5 of val"
    assert Snapshot.from_plain(json.loads(json.dumps(shown.as_plain()))) == shown
    lines: list[str] = []
    display = PlainLines(lines.append, interval_seconds=0)
    display.begin()
    display.show(shown)
    assert lines[0].split("  ")[-2:] == ["batch 6/6", "batch 5/5 of val"] or "batch 5/5 of val" in lines[0]
    assert seen.snapshots[-1].evaluation is None


def test_an_evaluation_without_a_length_is_shown_by_its_batches() -> None:
    class Unsized:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter([torch.ones(2, 1)] * 3)

    run = trainer(val_data=Unsized())
    while run.position != "validate/eval_batch":
        run.advance()
    assert (run.snapshot().evaluation_batch, run.snapshot().evaluation_batches) == (1, None)


@pytest.mark.usefixtures("at_every_tick")
def test_the_time_left_is_that_of_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs of 10 batches of 0.2 s."""
    now = [0.0]
    monkeypatch.setattr(session, "Stopwatch", functools.partial(Stopwatch, clock=lambda: now[0]))

    def step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        now[0] += 0.2
        return model(batch).mean()

    seen = Seen()
    graph = Graph.load("fit").set("finish", after="3 epochs")
    trainer(graph, seen, training_step=step, train_data=[torch.ones(2, 1)] * 10).run()
    found = {one.epoch: one.seconds_left for one in seen.snapshots if one.position == "next_batch"}
    assert found[0.1] is None
    for fetched in range(4, 31):  # of which the last is not trained on
        assert found[fetched / 10] == pytest.approx(0.2 * (fetched - 1) * (30 - fetched) / fetched)
