"""Promise 20: a case trained by Lightning itself, and by graphtrain; what each ends with."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers.logger import Logger

from graphtrain import Trainer
from graphtrain.adapters.lightning import setup
from graphtrain.adapters.lightning_trainer import base_of
from tests.company.modules import Case, data
from tests.world import assert_same

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
        self.calls: list[str] = []

    name, version = "rows", 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        taken = {name: float(value) for name, value in metrics.items() if name != "epoch"}
        self.rows.append((int(step or 0), taken))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    def save(self) -> None:
        self.calls.append("save")

    def finalize(self, status: str) -> None:
        self.calls.append(status)


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
        validate = trainer.fit_loop.epoch_loop.val_loop.run

        def validate_aside() -> Any:
            """With the generator put back, as graphtrain does: it seeds a validation by the seed of the run."""
            with torch.random.fork_rng(devices=[]):
                return validate()

        trainer.fit_loop.epoch_loop.val_loop.run = validate_aside
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


def run(module: Any, *, run_dir: Path | None = None, until: str | None = None, **given: Any) -> Trainer:
    """Train a module for an epoch, or what is asked for: arguments of `setup`."""
    graph, resources = setup(module, **{"train_dataloaders": data(), "max_epochs": 1, **given})
    return ran(graph, resources, run_dir=run_dir, until=until)


def ran(graph: Any, resources: Any, until: str | None = None, **options: Any) -> Trainer:
    trainer = Trainer(graph, device="cpu", display=None, notify=lambda line: None, **options, **resources)
    trainer.run(until=until)
    return trainer


def series(rows: list[tuple[int, dict[str, float]]]) -> dict[str, list[float]]:
    """The values of each metric, in order."""
    values: dict[str, list[float]] = {}
    for _, row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return values


def assert_as_lightning(case: Case, metrics: Sequence[str] = ()) -> None:
    """Weights, optimizers and what is logged are, to the bit, those that Lightning comes to.

    Arguments:
        metrics: those that are compared. Default: all that Lightning has.
    """
    expected, trainer = by_lightning(case), trainer_of(case)
    assert trainer.graph.check() == []
    trainer.run()
    actual = result_of(trainer)
    assert_same(actual.weights, expected.weights)
    assert_same(actual.optimizers, expected.optimizers)
    logged, wanted = series(actual.rows), series(expected.rows)
    for name in metrics or wanted:
        assert logged.get(name) == wanted[name], name


def assert_cut(make: Callable[[Path | None], Trainer], places: int, folder: Path) -> Trainer:
    """A run is, to the bit, those that are cut at as many places and resumed; returns the one that is not cut."""
    whole, transitions = make(None), 0
    while whole.position != "end":
        whole.advance()
        transitions += 1
    for number in range(places):
        first = make(folder / f"{number}")
        first.advance(1 + (number * transitions + transitions // 3) // places)
        first.save()
        second = make(folder / f"{number}")
        second.run()
        assert second.digest() == whole.digest(), f"cut before {first.position}"
        assert_same(second.resources["model"].state_dict(), whole.resources["model"].state_dict())
        assert second.metrics == whole.metrics
    return whole
