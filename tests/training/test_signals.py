"""Promise 12: a signal stops a run at its next save point; handlers and worker processes are left as found."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import LifeCycleError, Loader, Outcome, Trainer, fit
from tests.training.tiny import batches, calling, tiny
from tests.world import Augmented, Unsized, small_model, world

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_stops_at_the_next_save_point(number: signal.Signals, tmp_path: Path) -> None:
    before = [signal.getsignal(each) for each in STOPPING]
    trainer = tiny(run_dir=tmp_path, training_step=calling(lambda batch: batch == 2 and kill(number)))
    assert trainer.run() is Outcome.STOPPED
    assert (trainer.position, trainer.state, trainer.progress["next_batch"]["batches"]) == ("accumulate", "stopped", 3)
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "stopped"
    assert len([*(tmp_path / "checkpoints").iterdir()]) == 1
    assert [signal.getsignal(each) for each in STOPPING] == before
    resumed, whole = (tiny(run_dir=folder, training_step=calling(lambda batch: None)) for folder in (tmp_path, None))
    assert resumed.run() is whole.run() is Outcome.FINISHED
    assert resumed.digest() == whole.digest()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert tiny(training_step=calling(lambda batch: kill(number))).run() is Outcome.FINISHED
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_second_interrupt_stops_at_once() -> None:
    def interrupt(batch: int) -> None:
        kill(signal.SIGINT)
        kill(signal.SIGINT)
        raise AssertionError("the second one interrupts")

    trainer = tiny(training_step=calling(interrupt))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.state == "failed", "a node is half done"
    with pytest.raises(LifeCycleError, match="failed"):
        trainer.run()


@pytest.mark.parametrize("saves", [True, False])
def test_the_first_interrupt_is_acknowledged_once(
    saves: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(batch: int) -> None:
        kill(signal.SIGINT)

    assert tiny(run_dir=tmp_path if saves else None, training_step=calling(interrupt)).run() is Outcome.STOPPED
    (line,) = capfd.readouterr().err.splitlines()
    assert "Ctrl-C again" in line


def test_before_the_first_transition_nothing_is_run_and_nothing_saved(tmp_path: Path) -> None:
    signals: list[int] = []

    class Late(list[Any]):
        """Data that is first looked at while the run begins."""

        def __len__(self) -> int:
            if is_made and not signals:
                signals.append(signal.SIGTERM)
                kill(signal.SIGTERM)
            return super().__len__()

    is_made = False
    trainer = tiny(run_dir=tmp_path, train_data=Late(batches()))
    is_made = True
    assert trainer.run() is Outcome.STOPPED
    assert signals and trainer.progress["next_batch"]["batches"] == 0 and trainer.position == "decide"
    assert not list((tmp_path / "checkpoints").iterdir())
    assert trainer.run() is Outcome.FINISHED
    assert tiny(run_dir=tmp_path).run() is Outcome.ALREADY_FINISHED


# ---- worker processes of loaders end with the run, and one that continues begins them again where it was, bit for bit


def loader(**options: Any) -> Any:
    return Loader(Augmented(), 3, shuffle=True, num_workers=2, **options)


def data_loader(**options: Any) -> Any:
    return DataLoader(Augmented(), 3, shuffle=True, num_workers=2, **options)


def stateful_data_loader() -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader")
    return module.StatefulDataLoader(Augmented(), 3, shuffle=True, num_workers=2)


def working(data: Callable[[], Any], act: Callable[[int], Any] = lambda batch: None, **more: Any) -> Trainer:
    def training_step(model: Any, batch: Any, batch_index: int) -> torch.Tensor:
        act(batch_index)
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    graph = fit(accumulate=2, log_every="1 steps", save_every="never").set("finish", after="9 batches")
    return world(graph, model=small_model, data=data, training_step=training_step).trainer(**{"val_data": [], **more})


def workers() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


@pytest.fixture
def no_workers() -> Iterator[None]:
    """None of other tests before, and none left behind."""
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    yield
    assert not workers()


@pytest.mark.usefixtures("no_workers")
@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # which torchdata 0.11 calls
@pytest.mark.parametrize("make", [loader, data_loader, stateful_data_loader])
def test_a_run_in_pieces_is_the_run_in_one_also_past_its_end(make: Callable[[], Any]) -> None:
    whole, pieces = working(make), working(make)
    longer = whole.graph.set("finish", after="10 batches")
    whole.rewire(longer)
    assert whole.run() is Outcome.FINISHED
    for until in ("2 batches", "6 batches"):  # in mid-epoch, and in the next one
        assert pieces.run(until=until) is Outcome.REACHED
        assert not workers()
    assert pieces.run() is Outcome.FINISHED
    assert not workers()
    pieces.rewire(longer)
    assert pieces.run() is Outcome.FINISHED
    assert (pieces.digest(), pieces.metrics[:-1]) == (whole.digest(), whole.metrics[:-1])


@pytest.mark.usefixtures("no_workers")
@pytest.mark.full
def test_single_transitions_do_not_begin_them_again() -> None:
    trainer = working(data_loader)
    while trainer.progress["next_batch"]["batches"] < 2:
        trainer.advance()
    first = workers()
    assert len(first) == 2
    for _ in range(6):
        trainer.advance()
        assert workers() == first
    trainer.run(until="4 batches")
    assert not workers()
    while trainer.position != "end":
        trainer.advance()


@pytest.mark.usefixtures("no_workers")
def test_a_run_that_fails_leaves_none_behind() -> None:
    def act(batch: int) -> None:
        if batch == 1:
            raise ValueError("mine")

    trainer = working(data_loader, act)
    with pytest.raises(ValueError, match="mine") as caught:  # whose traceback holds everything
        trainer.run()
    assert trainer.state == "failed" and caught.value.__traceback__ is not None
    assert not workers()


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("where", ["in training", "inside an evaluation"])
def test_nor_one_that_is_stopped(where: str) -> None:
    if where == "in training":
        trainer = working(loader, lambda batch: batch == 1 and kill(signal.SIGTERM))
    else:
        step = lambda model, batch, batch_index: batch_index or kill(signal.SIGINT) or {"loss": 0.0}  # noqa: E731
        trainer = working(lambda: Unsized(Augmented()), val_data=data_loader(), validation_step=step)
    assert trainer.run() is Outcome.STOPPED
    assert trainer.position.startswith("validate/") == (where != "in training")


@pytest.mark.usefixtures("no_workers")
@pytest.mark.full
def test_nor_a_node_that_is_replaced() -> None:
    trainer = working(loader)
    trainer.advance()
    while trainer.position != "train_batch":
        trainer.advance()
    before = workers()
    trainer.rewire(trainer.graph.set("next_batch", limit=1000))
    assert len(workers()) == 2 and not workers() & before
    assert trainer.run() is Outcome.FINISHED
