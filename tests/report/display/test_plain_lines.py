"""Plain lines: what is new, when the time has come, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from graphtrain.report.display.choose import PlainLines
from graphtrain.report.snapshot import Snapshot
from tests.report.display.runs import snapshot


class Desk:
    """A display of lines, its clock, and the lines it printed."""

    def __init__(self, interval_seconds: float = 2.0) -> None:
        self.said: list[str] = []
        self.now = 100.0
        self.display = PlainLines(self.said.append, interval_seconds, clock=lambda: self.now)
        self.display.begin()

    def show(self, seconds: float, **changes: Any) -> list[str]:
        """Show a run some seconds later; the lines printed then."""
        self.now += seconds
        before = len(self.said)
        self.display.show(bare(**changes))
        return self.said[before:]

    def end(self, **changes: Any) -> list[str]:
        before = len(self.said)
        self.display.end(bare(**changes))
        return self.said[before:]


def bare(**changes: Any) -> Snapshot:
    return Snapshot(**{"state": "running", "graph": "fit", "position": "step", "step": 10, "epoch": 0.5, **changes})


def test_a_line_has_everything_that_is_known() -> None:
    desk = Desk()
    desk.display.show(snapshot())
    assert desk.said == [
        "step 4812  epoch 2.12  val/loss 0.051  loss 0.04231  accuracy 0.987  lr 0.001"
        "  batch 117/938  812 batches/s  26.0 k samples/s  2 min 13 s left"
    ]


def test_a_line_has_only_what_is_known() -> None:
    desk = Desk()
    assert desk.show(0, metrics={"loss": float("nan")}) == ["step 10  epoch 0.50  loss nan"]
    assert desk.show(5, metrics={"loss": float("nan")}) == [], "not a number is no news"
    assert desk.show(5, metrics={"loss": 1.0}, step=None, epoch=None) == ["loss 1"]


def test_a_line_in_an_interval() -> None:
    desk = Desk()
    assert len(desk.show(0, metrics={"loss": 1.0})) == 1
    assert desk.show(1, metrics={"loss": 0.9}) == []
    assert desk.show(1, metrics={"loss": 0.8}) == ["step 10  epoch 0.50  loss 0.8"]
    assert desk.show(2, metrics={"loss": 0.8}) == []


def test_the_latest_row_is_printed_and_no_older_one() -> None:
    desk = Desk()
    desk.show(0, metrics={"loss": 1.0, "lr": 0.1})
    assert desk.show(2, metrics={"loss": 1.0, "lr": 0.1, "val/loss": 2.0}) == ["step 10  epoch 0.50  val/loss 2"]
    latest = {"val/loss": 2.0, "loss": 0.5, "lr": 0.1}
    assert desk.show(2, metrics=latest) == ["step 10  epoch 0.50  loss 0.5  lr 0.1"]


def test_a_line_is_of_one_moment_and_what_is_older_says_so() -> None:
    desk = Desk()
    metrics = {"val/loss": 2.0, "step": 12, "epoch": 0.4, "loss": 1.0, "lr": 0.1}
    steps = {"val/loss": 10, "step": 12, "epoch": 12, "loss": 12, "lr": 12}
    now = {"step": 12, "epoch": 0.4, "batch": 4, "metrics": metrics, "metric_steps": steps}
    assert desk.show(0, **now) == ["step 12  epoch 0.40  val/loss 2 (step 10)  loss 1  lr 0.1  batch 4"]
    metrics = {**metrics, "val/loss": 3.0}
    later = {**now, "step": 15, "epoch": 0.5, "batch": 7, "metrics": metrics}
    assert desk.show(2, **later) == ["step 15  epoch 0.50  val/loss 3 (step 10)  loss 1, lr 0.1 (step 12)  batch 7"]


def test_the_end_prints_the_rest_and_where_time_went() -> None:
    desk = Desk()
    desk.show(0, metrics={"loss": 1.0})
    desk.show(1, metrics={"loss": 0.9})
    assert desk.end(metrics={"loss": 0.9}, seconds={"data": 1.0, "train": 3.0}) == [
        "step 10  epoch 0.50  loss 0.9",
        "time: data 25 %  train 75 %",
    ]


def test_a_long_silence_is_broken() -> None:
    desk = Desk()
    desk.show(0, metrics={"loss": 1.0})
    assert desk.show(59, metrics={"loss": 1.0}) == []
    assert desk.show(1, metrics={"loss": 1.0}, batch=7, epoch_batches=9) == ["step 10  epoch 0.50  batch 7/9"]
    assert desk.show(59, metrics={"loss": 1.0}) == []


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J"])
def test_text_of_others_stays_on_its_line(name: str) -> None:
    (line,) = Desk().show(0, metrics={name: 1.0})
    assert line.isprintable()
