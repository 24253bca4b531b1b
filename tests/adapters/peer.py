"""A case trained by Lightning itself, and by graphtrain; what each ends with, as plain values and tensors."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers.logger import Logger

from graphtrain import Trainer
from graphtrain.adapters.lightning import setup
from graphtrain.adapters.lightning_trainer import base_of
from graphtrain.state.random import capture_random, restore_random
from tests.adapters.modules import Case

EPOCHS = 10  # of 5 batches
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


@dataclass
class Trained:
    """What a training ends with."""

    weights: dict[str, torch.Tensor]
    optimizers: list[Any]
    rows: list[tuple[int, dict[str, float]]]


class Rows(Logger):
    """A logger of Lightning that keeps its rows, by the number of steps taken."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    name, version = "rows", 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        taken = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        self.rows.append((int(step or 0), taken))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


@contextlib.contextmanager
def random_numbers_kept(trainer: pl.Trainer) -> Iterator[None]:
    """Put the generators back around a validation of Lightning, as graphtrain does: it seeds one by the run's seed."""
    run = trainer.fit_loop.epoch_loop.val_loop.run

    def kept() -> Any:
        before = capture_random()
        try:
            return run()
        finally:
            restore_random(before)

    trainer.fit_loop.epoch_loop.val_loop.run = kept
    yield


def flags_of(case: Case) -> dict[str, Any]:
    flags: dict[str, Any] = {"log_every_n_steps": 1, "max_epochs": EPOCHS, **case.flags}
    return {**flags, "callbacks": [make() for make in flags.pop("callbacks", [])]}


def data_of(case: Case) -> dict[str, Any]:
    return {
        "train_dataloaders": case.train() if case.train else None,
        "val_dataloaders": case.val() if case.val else None,
        "datamodule": case.datamodule() if case.datamodule else None,
    }


def by_lightning(case: Case) -> Trained:
    """What Lightning trains."""
    torch.manual_seed(0)
    module, rows = case.module(), Rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = base_of(module, "LightningModule").__module__.partition(".core")[0]
        trainer = importlib.import_module(package).Trainer(
            accelerator="cpu",
            devices=1,
            logger=rows,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            **flags_of(case),
        )
        given = data_of(case)
        torch.manual_seed(1)
        with random_numbers_kept(trainer):
            trainer.fit(module, **given)
    optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers]
    return Trained(module.state_dict(), optimizers, rows.rows)


def trainer_of(case: Case, run_dir: Path | None = None) -> Trainer:
    """The trainer of graphtrain, as a script makes it."""
    torch.manual_seed(0)
    module = case.module()
    graph, resources = setup(module, **flags_of(case), **data_of(case))
    torch.manual_seed(1)
    graph = graph.set("checkpoint", every="never")
    return Trainer(graph, run_dir=run_dir, device="cpu", display=None, notify=lambda line: None, seed=1, **resources)


def result_of(trainer: Trainer) -> Trained:
    module = trainer.resources["model"]
    optimizers = [optimizer.state_dict() for optimizer in module.trainer.optimizers]
    rows = [(int(row["step"]), {n: v for n, v in row.items() if n not in ("step", "epoch")}) for row in trainer.metrics]
    return Trained(module.state_dict(), optimizers, rows)
