"""On a CUDA device nothing waits for it, and batches that are fetched early change no number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from graphtrain import Graph, Loader, Trainer
from graphtrain.state.random import seed_everything
from tests.devices import deterministic_kernels

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")]

WARM, BATCHES, BATCH_SIZE = 5, 105, 16
DEVICE = torch.device("cuda")

Edit = Callable[[Graph], Graph]
MakeData = Callable[[], Any]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with deterministic_kernels():
        yield
    torch.cuda.set_sync_debug_mode("default")


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 8))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def training_step(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def samples() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    count = BATCHES * BATCH_SIZE
    return TensorDataset(
        torch.randn(count, 32, generator=generator), torch.randint(0, 8, (count,), generator=generator)
    )


def host_batches() -> list[Any]:
    tensors = [one.split(BATCH_SIZE) for one in samples().tensors]
    return list(zip(*tensors, strict=True))


def pinned_batches() -> list[Any]:
    return [tuple(one.pin_memory() for one in batch) for batch in host_batches()]


def device_batches() -> list[Any]:
    return [tuple(one.to(DEVICE) for one in batch) for batch in host_batches()]


def loader() -> Loader:
    return Loader(samples(), BATCH_SIZE, shuffle=True, pin_memory=True)


def bare(graph: Graph) -> Graph:
    return graph


def equipped(graph: Graph) -> Graph:
    return graph.set("clip", max_norm=1.0).set("accumulate", every=2)


def make_trainer(
    data: Any, edit: Edit, run_dir: Path | None = None, *, epochs: int = 1, step: Any = training_step
) -> Trainer:
    seed_everything(7)
    model = make_model()
    model.to(DEVICE)
    graph = Graph.load("fit").set("log", every="never").set("finish", after=f"{epochs} epochs")
    return Trainer(
        edit(graph.set("checkpoint", every=["50 batches", "1 epochs"], keep=100)),
        run_dir=run_dir,
        seed=11,
        device=DEVICE,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=make_optimizer(model),
        train_data=data,
        training_step=step,
    )


# No synchronisation


def seeing_synchronisation(mode: str = "error") -> Callable[[nn.Module, Any], torch.Tensor]:
    """A training step that makes whatever waits for the device an error, from a batch on until the last but one."""
    batches = 0

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal batches
        batches += 1
        if batches == WARM:
            torch.cuda.set_sync_debug_mode(mode)
        if batches == BATCHES:  # the end of the epoch reads the means
            torch.cuda.set_sync_debug_mode("default")
        return training_step(model, batch)

    return step


def composed(*edits: Edit) -> Edit:
    def edit(graph: Graph) -> Graph:
        for one in edits:
            graph = one(graph)
        return graph

    return edit


@pytest.mark.parametrize("data", [device_batches, pinned_batches, host_batches])
@pytest.mark.parametrize(
    "edit",
    [
        bare,
        equipped,
        lambda graph: graph.set("train_batch", precision="bf16-mixed"),
    ],
    ids=["bare", "clip and accumulate", "bf16"],
)
def test_a_hundred_batches_wait_for_nothing(edit: Edit, data: MakeData) -> None:
    trainer = make_trainer(data(), edit, step=seeing_synchronisation())
    trainer.run()
    assert trainer.progress["train_batch"]["runs"] == BATCHES


def test_what_waits_is_noticed() -> None:
    """The mutation: a metric that is a number."""
    seeing = seeing_synchronisation()

    def step(model: nn.Module, batch: Any) -> dict[str, Any]:
        loss = seeing(model, batch)
        return {"loss": loss, "number": loss.item()}

    with pytest.raises(RuntimeError, match="synchroniz"):
        make_trainer(device_batches(), bare, step=step).run()


# The same numbers


def test_a_batch_that_is_read_late_is_still_there() -> None:
    """The device is kept busy, so that it reads a batch long after the host released it, and of several others."""
    large = [torch.full((1 << 20,), float(number)).pin_memory() for number in range(40)]
    sums: list[torch.Tensor] = []
    model = nn.Linear(1, 1)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(20_000_000)
        sums.append(batch.double().mean())
        return model(batch[:1, None]).sum()

    Trainer(
        Graph.load("fit").set("finish", after="1 epochs"),
        device=DEVICE,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        train_data=large,
        training_step=step,
    ).run()
    assert [one.item() for one in sums] == [float(number) for number in range(40)]
