"""STOP and END_EPOCH: what step functions ask for, against loops by hand, over cuts and ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import END_EPOCH, STOP, Graph, Loader, Outcome, Trainer, UsageError
from graphtrain.kind.declaration import Ask
from tests.resume.rank_runs import run

FIT = Graph.load("fit").set("log", every="1 steps").set("checkpoint", every="never").set("accumulate", every=2)
BATCHES = 5
Asking = Callable[[int, int], Ask | None]
"""What is asked for at an epoch and a batch of it."""


def data() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(3, 2, generator=draw) for _ in range(BATCHES)]


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def resources(asking: Asking, *, as_mapping: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))

    def training_step(model: torch.nn.Module, batch: torch.Tensor, epoch: int, batch_index: int) -> Any:
        loss = loss_of(model, batch)
        ask = asking(epoch, batch_index)
        result = {"loss": loss, "half": 0.5} if as_mapping else loss
        return result if ask is None else (result, ask)

    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return {"model": model, "optimizer": optimizer, "train_data": data(), "training_step": training_step}


def trainer_of(asking: Asking, run_dir: Path | None = None, graph: Graph = FIT, **more: Any) -> Trainer:
    supplied = {**resources(asking), **more}
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, device="cpu", notify=lambda line: None, **supplied)


def weights(model: torch.nn.Module) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


def by_hand(asking: Asking, epochs: int, window: int = 2) -> tuple[list[list[float]], list[int]]:
    """The weights, and how many batches each epoch had."""
    supplied = resources(asking)
    model, optimizer = supplied["model"], supplied["optimizer"]
    torch.manual_seed(0)
    lengths = []
    for epoch in range(epochs):
        for number, batch in enumerate(supplied["train_data"], 1):
            (loss_of(model, batch) / window).backward()  # type: ignore[no-untyped-call]
            ask = asking(epoch, number - 1)
            if number % window == 0 or number == BATCHES or ask is not None:
                optimizer.step()
                optimizer.zero_grad()
            if ask is not None:
                break
        lengths.append(number)
        if ask is STOP:
            break
    return weights(model), lengths


ASKING: dict[str, Asking] = {
    "stop in mid-window": lambda epoch, batch: STOP if (epoch, batch) == (1, 2) else None,
    "stop where a window ends": lambda epoch, batch: STOP if (epoch, batch) == (1, 3) else None,
    "stop at once": lambda epoch, batch: STOP,
    "stop with the last batch": lambda epoch, batch: STOP if (epoch, batch) == (1, BATCHES - 1) else None,
    "end every epoch": lambda epoch, batch: END_EPOCH if batch == 2 else None,
    "end every epoch at once": lambda epoch, batch: END_EPOCH,
    "end an epoch with its last batch": lambda epoch, batch: END_EPOCH if batch == BATCHES - 1 else None,
    "end some, then stop": lambda epoch, batch: STOP if epoch == 2 else END_EPOCH if batch == epoch + 1 else None,
}


@pytest.mark.parametrize("name", ASKING)
def test_it_trains_what_the_loop_by_hand_trains(name: str) -> None:
    trainer = trainer_of(ASKING[name], graph=FIT.set("finish", after="4 epochs"))
    assert trainer.run() is Outcome.FINISHED
    expected, lengths = by_hand(ASKING[name], 4)
    assert weights(trainer.resources["model"]) == expected
    assert trainer.progress["next_batch"]["batches"] == sum(lengths)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", ["stop in mid-window", "end every epoch", "end some, then stop"])
@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.sweep)])
def test_wherever_it_is_cut_it_is_exact(name: str, step: int, tmp_path: Path) -> None:
    graph = FIT.set("finish", after="3 epochs")
    whole = trainer_of(ASKING[name], graph=graph)
    transitions = 0
    while whole.position != "end":
        whole.advance()
        transitions += 1
    for cut in range(13, transitions, step):
        first = trainer_of(ASKING[name], tmp_path / str(cut), graph)
        first.advance(cut)
        first.save()
        second = trainer_of(ASKING[name], tmp_path / str(cut), graph)
        second.run()
        assert second.digest() == whole.digest(), f"cut before {first.position}"
        assert second.metrics == whole.metrics


DATA: dict[str, Callable[[], Any]] = {
    "a loader": lambda: Loader(torch.randn(BATCHES * 3, 2), batch_size=3, shuffle=True),
    "a data loader": lambda: DataLoader(torch.randn(BATCHES * 3, 2), batch_size=3, shuffle=True),  # type: ignore[arg-type]
    "data without a length": lambda: Endless(),
}


class Endless:
    def __iter__(self) -> Any:
        number = 0
        while True:
            number += 1
            yield torch.full((3, 2), number / 10)


@pytest.mark.full
@pytest.mark.parametrize("name", DATA)
def test_an_epoch_of_any_data_ends(name: str, tmp_path: Path) -> None:
    asking = ASKING["end every epoch"]
    graph = FIT.set("finish", after="3 epochs")

    def made(run_dir: Path | None = None) -> Trainer:
        torch.manual_seed(5)
        return trainer_of(asking, run_dir, graph, train_data=DATA[name]())

    whole = made()
    whole.run()
    assert whole.progress["next_batch"]["batches"] == 9
    first = made(tmp_path)
    while first.progress["train_batch"]["runs"] < 6:
        first.advance()
    assert first.progress["next_batch"]["ended"]
    first.save()
    second = made(tmp_path)
    second.run()
    assert second.digest() == whole.digest()


# ---- evaluations


@pytest.mark.parametrize("alone", [True, False])
def test_a_validation_stops_the_run_or_ends_early(alone: bool) -> None:
    asked: list[Ask] = [END_EPOCH, STOP]
    seen: list[int] = []

    def validation_step(model: torch.nn.Module, batch: torch.Tensor, epoch: int) -> Any:
        seen.append(epoch)
        return asked[epoch] if alone else ({"loss": float(len(seen))}, asked[epoch])

    trainer = trainer_of(lambda epoch, batch: None, val_data=data()[:3], validation_step=validation_step)
    assert trainer.run() is Outcome.FINISHED
    assert seen == [0, 1, 1, 1]  # the validation that stops the run is completed
    assert trainer.progress["next_batch"]["epochs"] == 2
    rows = [row["val/loss"] for row in trainer.metrics if "val/loss" in row]
    assert rows == ([] if alone else [1.0, 3.0])


# ---- what is refused


def test_without_a_loss_it_is_an_error() -> None:
    with pytest.raises(UsageError, match="`training_step` must return a scalar loss"):
        trainer_of(lambda epoch, batch: None, training_step=lambda model, batch: STOP).run()


def test_a_graph_in_which_nothing_ends_by_an_amount_is_an_error() -> None:
    graph = FIT.guard("ending", "step.steps >= 5").set("finish", after="never")
    with pytest.raises(UsageError, match="returned STOP, and no guard reads if a node with `after` is due"):
        trainer_of(lambda epoch, batch: STOP, graph=graph).run()


# ---- several ranks


def asking_of_rank(rank_of_asking: int, ask: Ask, batches: int) -> dict[str, Any]:
    def step(model: torch.nn.Module, batch: Any, step: int, epoch: int, batch_index: int) -> Any:
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        is_asking = batch_index % 2 == rank_of_asking and batch_index >= batches
        return (loss, ask) if is_asking else loss

    return {"training_step": step, "is_plain": True}


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_asks_is_enough(rank: int) -> None:
    ends = run(2, None, **asking_of_rank(rank, STOP, 4))
    assert {end.outcome for end in ends} == {Outcome.FINISHED}
    assert torch.equal(ends[0].weights, ends[1].weights)
    assert {end.progress["next_batch"]["batches"] for end in ends} == {8}  # all learn of it when the next is fetched
    ends = run(2, None, **asking_of_rank(rank, END_EPOCH, 4))
    assert torch.equal(ends[0].weights, ends[1].weights)
    # Two steps an epoch, of 4 micro-batches and of 2; four of them end the run.
    assert {(end.progress["next_batch"]["epoch"], end.progress["next_batch"]["batches"]) for end in ends} == {(1, 12)}


@pytest.mark.full
@pytest.mark.parametrize("ask", [STOP, END_EPOCH])
@pytest.mark.parametrize("cuts", [(16,), pytest.param(range(1, 40), marks=pytest.mark.sweep)])
def test_what_one_rank_asks_survives_a_cut(ask: Ask, cuts: Any, tmp_path: Path) -> None:
    options = asking_of_rank(1, ask, 4)
    whole = run(2, None, **options)
    for cut in cuts:
        first = run(2, tmp_path / str(cut), advance=cut, **options)
        if first[0].position == "end":
            break
        ends = run(2, tmp_path / str(cut), **options)
        assert [end.digest for end in ends] == [end.digest for end in whole], f"cut before {first[0].position}"
