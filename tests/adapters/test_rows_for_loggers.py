"""A logger of Lightning that is given to its Trainer gets every row of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import LightningModule
from lightning.pytorch.loggers.logger import Logger

from graphtrain import Trainer
from graphtrain.adapters.lightning import setup

pytestmark = pytest.mark.filterwarnings("ignore")


class Kept(Logger):
    """Keeps what it is called with."""

    name, version = "kept", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.calls: list[str] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((int(step or 0), metrics))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    def save(self) -> None:
        self.calls.append("save")

    def finalize(self, status: str) -> None:
        self.calls.append(status)


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any) -> Any:
        loss = self.layer(batch).square().mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def run(folder: Path, logger: Any) -> Trainer:
    data = [torch.ones(4, 2)] * 3
    graph, resources = setup(Net(), train_dataloaders=data, max_epochs=2, log_every_n_steps=1, logger=logger)
    trainer = Trainer(graph, run_dir=folder, display=None, notify=lambda line: None, **resources)
    trainer.run()
    return trainer


def test_a_logger_gets_every_row_and_how_the_run_ended(tmp_path: Path) -> None:
    kept = Kept()
    trainer = run(tmp_path, kept)
    assert [{"step": step, **row} for step, row in kept.rows] == trainer.metrics
    assert any("train_loss" in row for row in trainer.metrics)
    assert kept.calls[-2:] == ["success", "save"]


def test_without_a_logger_nothing_is_called() -> None:
    for logger in (True, False, None):
        _, resources = setup(Net(), train_dataloaders=[torch.ones(4, 2)], max_epochs=1, logger=logger)
        assert "loggers" not in resources


@pytest.mark.full
def test_the_table_of_lightning_has_the_rows(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    run(tmp_path / "run", CSVLogger(tmp_path, name="table"))
    (file,) = tmp_path.glob("table/*/metrics.csv")
    header, *lines = file.read_text(encoding="utf-8").splitlines()
    assert {"step", "epoch", "train_loss"} <= {*header.split(",")} and len(lines) >= 6
