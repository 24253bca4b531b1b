"""Shipped overlays on several ranks: the same as one process with as many micro-batches in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Loader, Trainer
from tests.ranks.fake_ranks import run_ranks
from tests.shipped import OVERLAYS

SHORT = ("ema", "early_stop")
WITH = {"update_bn": ("swa", "update_bn")}  # what one is for is made by another
SETTINGS: dict[str, dict[str, float]] = {
    "rollback": {"deviations": 1e6},  # ranks look for spikes in the mean of their losses, one process in each loss
}


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def sum_of(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": loss_of(model, batch) * len(batch[0]), "tokens": len(batch[0])}


def distilled(model: torch.nn.Module, batch: Any, teacher_output: torch.Tensor) -> torch.Tensor:
    return loss_of(model, batch) + torch.nn.functional.mse_loss(model(batch[0]), teacher_output)


def needed(name: str, model: torch.nn.Sequential, val_data: Any) -> dict[str, Any]:
    """The resources that an overlay reads beside those of `fit`."""
    match name:
        case "distill":
            teacher = torch.nn.Linear(4, 1).double()
            return {
                "teacher": teacher,
                "teacher_step": lambda model, batch: model(batch[0]),
                "training_step": distilled,
            }
        case "unfreeze":
            head, body = (torch.optim.SGD(model[index].parameters(), lr=0.1) for index in (2, 0))
            return {"optimizer": head, "body_optimizer": body, "scheduler": None}
        case "val_guided":
            return {"guiding_data": val_data}
        case "token_windows":
            return {"training_step": sum_of}
    return {}


def trained(name: str, every: int, folder: Path) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    inputs = torch.randn(23 * 4, 4, dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedulers: dict[bool, Any] = {
        True: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
        False: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9),
    }
    graph = (
        Graph.load("fit")
        .set("schedule", every="1 steps")
        .overlay(*WITH.get(name, (name,)))
        .set("accumulate", every=every)
        .set("clip", max_norm=0.5)
    )
    if name in SETTINGS:
        graph = graph.set(name, **SETTINGS[name])
    val_data = [(inputs[first : first + 4], targets[first : first + 4]) for first in range(0, 12, 4)]
    resources = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": schedulers[name == "plateau"],
        "train_data": Loader(torch.utils.data.TensorDataset(inputs, targets), batch_size=4, shuffle=True),
        "val_data": val_data,
        "training_step": loss_of,
        "validation_step": loss_of,
    }
    trainer = Trainer(
        graph.set("finish", after="3 epochs").set("log", every="2 steps"),
        seed=0,
        run_dir=folder if name == "rollback" else None,  # it goes back to checkpoints
        display=None,
        notify=lambda line: None,
        **resources | needed(name, model, val_data),
    )
    trainer.run()
    return [parameter.detach() for parameter in model.parameters()], trainer.metrics


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.sweep) for name in OVERLAYS]
)
def test_an_overlay_trains_on_ranks_as_in_one_process(name: str, tmp_path: Path) -> None:
    weights, metrics = trained(name, 4, tmp_path / "1")
    for world_size, every in (2, 2), (4, 1):
        folder = tmp_path / str(world_size)
        of_ranks = run_ranks(world_size, lambda ranks, every=every, folder=folder: trained(name, every, folder))  # type: ignore[misc]
        for weights_of_rank, metrics_of_rank in of_ranks:
            assert all(map(torch.equal, weights_of_rank, of_ranks[0][0]))
            torch.testing.assert_close(weights_of_rank, weights, rtol=0, atol=1e-12)
            assert metrics_of_rank == of_ranks[0][1]
            assert [sorted(row) for row in metrics_of_rank] == [sorted(row) for row in metrics]
            for row, other in zip(metrics_of_rank, metrics, strict=True):
                assert row == pytest.approx(other, abs=1e-9)
