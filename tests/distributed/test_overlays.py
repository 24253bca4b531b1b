"""Shipped overlays on several ranks: the same as one process with as many micro-batches in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import graphtrain
from graphtrain import Graph, Loader, Trainer
from tests.distributed.fake_ranks import run_ranks

OVERLAYS = sorted(file.stem for file in (Path(graphtrain.__file__).parent / "graphs" / "overlays").glob("*.toml"))
SHORT = ("ema", "early_stop")


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def sum_of(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": loss_of(model, batch) * len(batch[0]), "tokens": len(batch[0])}


def trained(names: tuple[str, ...], every: int) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    inputs = torch.randn(23 * 4, 4, dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedulers: dict[bool, Any] = {
        True: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
        False: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9),
    }
    graph = Graph.load("fit").overlay(*names).set("accumulate", every=every).set("clip", max_norm=0.5)
    trainer = Trainer(
        graph.set("finish", after="3 epochs").set("log", every="2 steps"),
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=optimizer,
        scheduler=schedulers["plateau" in names],
        train_data=Loader(torch.utils.data.TensorDataset(inputs, targets), batch_size=4, shuffle=True),
        val_data=[(inputs[first : first + 4], targets[first : first + 4]) for first in range(0, 12, 4)],
        training_step=sum_of if "token_windows" in names else loss_of,
    )
    trainer.run()
    return [parameter.detach() for parameter in model.parameters()], trainer.metrics


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.sweep) for name in OVERLAYS]
)
def test_an_overlay_trains_on_ranks_as_in_one_process(name: str) -> None:
    weights, metrics = trained((name,), every=4)
    for world_size, every in (2, 2), (4, 1):
        of_ranks = run_ranks(world_size, lambda ranks, every=every: trained((name,), every))  # type: ignore[misc]
        for weights_of_rank, metrics_of_rank in of_ranks:
            assert all(map(torch.equal, weights_of_rank, of_ranks[0][0]))
            torch.testing.assert_close(weights_of_rank, weights, rtol=0, atol=1e-12)
            assert metrics_of_rank == of_ranks[0][1]
            assert [sorted(row) for row in metrics_of_rank] == [sorted(row) for row in metrics]
            for row, other in zip(metrics_of_rank, metrics, strict=True):
                assert row == pytest.approx(other, abs=1e-9)
