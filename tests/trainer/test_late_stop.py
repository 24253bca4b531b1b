"""A signal that comes while the run is about to stop is the outcome of that run, and does not stop the next one."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn

from graphtrain import Graph, Outcome, Trainer
from graphtrain.report.snapshot import Display, Snapshot


class SignalAtTheEnd(Display):
    """A display during whose first end a signal comes: the run has stopped, and handlers are still in place."""

    def __init__(self, number: signal.Signals) -> None:
        self.numbers = [number]

    def begin(self, snapshot: Snapshot | None = None) -> None: ...

    def show(self, snapshot: Snapshot) -> None: ...

    def end(self, snapshot: Snapshot) -> None:
        if self.numbers:
            os.kill(os.getpid(), self.numbers.pop())


def late(number: signal.Signals) -> tuple[Trainer, SignalAtTheEnd]:
    model = nn.Linear(1, 1)
    display = SignalAtTheEnd(number)
    trainer = Trainer(
        Graph.load("fit").set("finish", after="2 epochs"),
        device="cpu",
        display=display,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(2, 1)] * 5,
        training_step=lambda model, batch: model(batch).mean(),
    )
    return trainer, display


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_late_signal_does_not_stop_the_next_run(number: signal.Signals) -> None:
    trainer, display = late(number)
    assert trainer.run(until="3 batches") is Outcome.STOPPED, "or a loop of `run(until=...)` would never know"
    assert display.numbers == [], "the signal came"
    assert (trainer.state, trainer.progress["next_batch"]["batches"]) == ("stopped", 3)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["next_batch"]["batches"] == 10


def test_a_run_that_is_over_has_finished_whatever_comes_late() -> None:
    trainer, display = late(signal.SIGTERM)
    assert (trainer.run(), display.numbers, trainer.run()) == (Outcome.FINISHED, [], Outcome.ALREADY_FINISHED)
