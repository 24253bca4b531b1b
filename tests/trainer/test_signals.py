"""Signals: a run of the library stops at its next save point, and leaves the handlers as it found them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer
from graphtrain.storage.run_directory import read_status

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def make_trainer(run_dir: Path | None = None, at_batch: Any = lambda batch_index: None, **more: Any) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)

    def training_step(model: Any, batch: Any, batch_index: int) -> Any:
        at_batch(batch_index)
        return model(batch).square().mean()

    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.full((2, 1), float(number)) for number in range(5)],
        "training_step": training_step,
        **more,
    }
    graph = Graph.load("fit").set("finish", after="2 epochs")
    return Trainer(graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=lambda line: None, **resources)


def test_a_hang_up_stops_as_sigterm_does(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    hang_up = lambda batch_index: batch_index == 2 and os.kill(os.getpid(), signal.SIGHUP)  # noqa: E731
    trainer = make_trainer(tmp_path, hang_up)
    assert trainer.run() is Outcome.STOPPED
    assert read_status(tmp_path)["state"] == "stopped" and len([*(tmp_path / "checkpoints").iterdir()]) == 1
    assert [signal.getsignal(number) for number in STOPPING] == before
    resumed, whole = make_trainer(tmp_path), make_trainer()
    assert resumed.run() is whole.run() is Outcome.FINISHED
    assert resumed.digest() == whole.digest()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_ignored(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        trainer = make_trainer(at_batch=lambda batch_index: os.kill(os.getpid(), number))
        assert trainer.run() is Outcome.FINISHED
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_before_the_first_transition_nothing_is_run_and_nothing_saved(tmp_path: Path) -> None:
    class Late(list[Any]):
        """Data that is first looked at while the run begins."""

        def __len__(self) -> int:
            if not trainer.progress["next_batch"]["batches"] and not signals:
                signals.append(signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
            return super().__len__()

    signals: list[int] = [0]
    trainer = make_trainer(tmp_path, train_data=Late([torch.ones(2, 1)] * 5))
    signals.clear()
    assert trainer.run() is Outcome.STOPPED
    assert signals and trainer.progress["next_batch"]["batches"] == 0 and trainer.position == "decide"
    assert not list((tmp_path / "checkpoints").iterdir())
    assert trainer.run() is Outcome.FINISHED
    assert make_trainer(tmp_path).run() is Outcome.ALREADY_FINISHED


@pytest.mark.full
@pytest.mark.parametrize(("saves", "words"), [(True, "stopping at the next save point"), (False, "after this node")])
def test_the_first_interrupt_is_acknowledged_at_once(
    saves: bool, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def interrupt(batch_index: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        shown.append(capfd.readouterr().err)

    trainer = make_trainer(tmp_path if saves else None, interrupt)
    assert trainer.run() is Outcome.STOPPED
    (line,) = shown
    assert words in line and "Ctrl-C again" in line and line.endswith("\n")
    assert capfd.readouterr().err == ""
