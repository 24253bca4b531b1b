"""Loader workers end with the run, and a run that continues begins them again where it was, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from graphtrain import Graph, LifeCycleError, Loader, Outcome, Trainer
from graphtrain.state.random import seed_everything
from tests.program.small_run import Augmented, make_model, training_step


def loader(**options: Any) -> Any:
    return Loader(Augmented(), 3, shuffle=True, num_workers=2, **options)


def data_loader(**options: Any) -> Any:
    return DataLoader(Augmented(), 3, shuffle=True, num_workers=2, **options)


def make_trainer(data: Any, step: Callable[..., Any] = training_step, **more: Any) -> Trainer:
    torch.set_num_threads(1)
    seed_everything(7)
    model = make_model()
    graph = Graph.load("fit").set("accumulate", every=2).set("finish", after="9 batches").set("log", every="1 steps")
    return Trainer(
        graph.set("checkpoint", every="never"),
        seed=11,
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        train_data=data,
        training_step=step,
        **more,
    )


def workers() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


@pytest.fixture(autouse=True)
def no_workers_of_other_tests() -> None:
    for process in multiprocessing.active_children():
        process.kill()
        process.join()


class CountingSampler(Sampler[int]):
    """Counts the epochs itself, and takes its order from that."""

    def __init__(self) -> None:
        self.epochs = 0

    def __len__(self) -> int:
        return len(Augmented())

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        return iter(torch.randperm(len(self), generator=torch.Generator().manual_seed(self.epochs)).tolist())


def counting_loader() -> Any:
    return Loader(Augmented(), 3, sampler=CountingSampler(), num_workers=2)


def counting_data_loader() -> Any:
    return DataLoader(Augmented(), 3, sampler=CountingSampler(), num_workers=2)


def stateful_data_loader() -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader")
    seed_everything(3)  # it draws a seed when it is made
    return module.StatefulDataLoader(Augmented(), 3, shuffle=True, num_workers=2)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # which torchdata 0.11 calls
@pytest.mark.parametrize("make", [loader, data_loader, counting_loader, counting_data_loader, stateful_data_loader])
def test_a_run_in_pieces_is_the_run_in_one(make: Callable[[], Any]) -> None:
    whole = make_trainer(make())
    assert whole.run() is Outcome.FINISHED
    assert not workers()
    pieces = make_trainer(make())
    for until in ("2 batches", "6 batches"):  # in mid-epoch, and in the next one
        assert pieces.run(until=until) is Outcome.REACHED
        assert not workers()
    assert pieces.run() is Outcome.FINISHED
    assert (pieces.digest(), pieces.metrics) == (whole.digest(), whole.metrics)


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("make", [loader, data_loader])
def test_a_run_that_is_finished_in_mid_epoch_can_be_continued(make: Callable[[], Any]) -> None:
    trainer = make_trainer(make())
    trainer.run()
    trainer.rewire(trainer.graph.set("finish", after="10 batches"))
    assert trainer.run() is Outcome.FINISHED
    assert not workers()
    longer = make_trainer(make())
    longer.rewire(longer.graph.set("finish", after="10 batches"))
    longer.run()
    assert trainer.digest() == longer.digest()


@pytest.mark.full
def test_single_transitions_do_not_begin_them_again() -> None:
    trainer = make_trainer(data_loader())
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
    assert not workers()
    with pytest.raises(LifeCycleError):
        trainer.advance()


def test_a_run_that_fails() -> None:
    def raises(model: Any, batch: Any, step: int) -> Any:
        if step == 1:
            raise ValueError("mine")
        return training_step(model, batch)

    trainer = make_trainer(data_loader(), raises)
    with pytest.raises(ValueError, match="mine") as caught:  # whose traceback holds everything
        trainer.run()
    assert trainer.state == "failed" and caught.value.__traceback__ is not None
    assert not workers()


@pytest.mark.full
def test_a_run_that_is_stopped_by_a_signal() -> None:
    held: list[Any] = []  # as a traceback or a cycle would

    def stops(model: Any, batch: Any, batch_index: int) -> Any:
        if batch_index == 1:
            held.append(trainer._session.compiled.program.by_path["next_batch"].instance._opened.iterator)
            os.kill(os.getpid(), signal.SIGTERM)
        return training_step(model, batch)

    trainer = make_trainer(loader(), stops)
    assert trainer.run() is Outcome.STOPPED
    assert held and not workers()


def test_inside_an_evaluation() -> None:
    def stops(model: Any, batch: Any, batch_index: int) -> Any:
        if batch_index == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return {"loss": 0.0}

    trainer = make_trainer([next(iter(DataLoader(Augmented(), 3)))] * 2, val_data=data_loader(), validation_step=stops)
    assert trainer.run() is Outcome.STOPPED
    assert trainer.position.startswith("validate/")
    assert not workers()


@pytest.mark.full
def test_a_node_that_is_replaced_leaves_none_behind() -> None:
    trainer = make_trainer(loader())
    while trainer.position != "train_batch":
        trainer.advance()
    before = workers()
    trainer.rewire(trainer.graph.set("next_batch", limit=1000))
    assert len(workers()) == 2 and not workers() & before
    assert trainer.run() is Outcome.FINISHED
    assert not workers()


@pytest.mark.full
def test_persistent_workers() -> None:
    """A Loader's end with the run; those of torch's DataLoader end with it, as torch has it."""
    persistent = make_trainer(loader(persistent_workers=True))
    persistent.run(until="7 batches")
    assert not workers()
    persistent.run()
    whole = make_trainer(loader())
    whole.run()
    assert persistent.digest() == whole.digest()
    assert not workers()
    torchs = data_loader(persistent_workers=True)
    trainer = make_trainer(torchs)
    trainer.run(until="2 batches")
    assert len(workers()) == 2
    trainer.run()
    torchs._iterator._persistent_workers = False
    torchs._iterator._shutdown_workers()  # in a garbage collection it takes seconds
