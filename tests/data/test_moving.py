"""Batches on their way to a device: nests of any kind, and a function of the user's."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from graphtrain import Graph, Trainer, UsageError
from graphtrain.data.batch import move, sample_counter, tensors_of

META = torch.device("meta")


class Pair(NamedTuple):
    inputs: Any
    name: str


@dataclasses.dataclass(frozen=True)
class Frozen:
    inputs: Any
    length: int = 3
    made: Any = dataclasses.field(init=False, default=None)


@dataclasses.dataclass(slots=True)
class Slotted:
    inputs: Any


@dataclasses.dataclass
class Moving:
    """It says itself how it is moved."""

    inputs: Any
    was_moved: bool = False

    def to(self, device: torch.device) -> Moving:
        return Moving(self.inputs.to(device), was_moved=True)


class Other:
    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs

    def to(self, device: torch.device) -> Other:
        return Other(self.inputs.to(device))


def tensor() -> torch.Tensor:
    return torch.ones(4, 2)


@pytest.mark.parametrize(
    "batch",
    [
        tensor(),
        [tensor()],
        Pair(tensor(), "a"),
        {"deep": (Pair([tensor()], "a"),)},
        UserDict(inputs=tensor()),
        Frozen(tensor()),
        Slotted({"inputs": tensor()}),
        Frozen(Slotted(Pair(tensor(), "a"))),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_every_tensor_of_a_nest_is_moved(batch: Any) -> None:
    moved = move(batch, META)
    assert type(moved) is type(batch)
    assert [each.device.type for each in tensors_of(moved)] == ["meta"]
    assert [each.device.type for each in tensors_of(batch)] == ["cpu"], "the batch of the data stays as it is"
    assert sample_counter()(batch) == 4


@pytest.mark.parametrize("made", [Moving, Other])
def test_what_moves_itself_does(made: Any) -> None:
    moved = move({"x": [made(tensor())]}, META)["x"][0]
    assert type(moved) is made and moved.inputs.device.type == "meta"
    assert getattr(moved, "was_moved", True)


def test_a_packed_sequence_stays_one() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    moved = move([packed, "a"], META)[0]
    assert moved.data.device.type == "meta" and moved.batch_sizes.device.type == "cpu"


# ---- transfer


def make(run_dir: Path | None = None, **more: Any) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return Trainer(
        Graph.load("fit").set("finish", after="2 epochs").set("checkpoint", every="never"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[tensor() * number for number in range(4)],
        val_data=[tensor()],
        training_step=lambda model, batch: model(batch["inputs"]).square().mean(),
        **more,
    )


def transfer(batch: torch.Tensor, device: torch.device) -> dict[str, torch.Tensor]:
    return {"inputs": batch.to(device) + 1}


@pytest.mark.full
def test_a_function_of_the_user_moves_batches_of_training_and_validation(tmp_path: Path) -> None:
    whole = make(transfer=transfer)
    whole.run()
    model = make(transfer=transfer).resources["model"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in (0, 1, 2, 3, 0, 1, 2, 3):
        model(tensor() * number + 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(model.weight, whole.resources["model"].weight)
    first = make(tmp_path, transfer=transfer)
    first.run(until="3 batches")
    second = make(tmp_path, transfer=transfer)
    second.run()
    assert second.digest() == whole.digest()


def test_a_function_that_returns_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="`transfer` returned nothing"):
        make(transfer=lambda batch, device: None).run()
