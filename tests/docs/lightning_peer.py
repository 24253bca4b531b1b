"""Lightning's Trainer on the small training, in an environment that has it.

    python -m tests.docs.lightning_peer CASES RECORDS

`CASES` is a JSON file: name -> {"training": arguments of `Training`, "trainer": arguments of Lightning's Trainer,
"callbacks": name -> arguments}. `RECORDS` is written: name -> the fields of a `Record`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tests.docs.small_training import HOOKS, Materials, Record, Training

# What graphtrain's side does not have by itself, off.
_QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
    "max_epochs": 3,
}

# The modules that read the time.
_CLOCKS = ("callbacks.timer", "loops.fit_loop", "loops.training_epoch_loop", "loops.evaluation_loop")


def run(training: Training, options: Mapping[str, Any], callbacks: Mapping[str, Mapping[str, Any]]) -> Record:
    """Train with Lightning.

    Arguments:
        options: of its Trainer.
        callbacks: arguments by the name of the class.
    """
    import lightning.pytorch.callbacks as shipped
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers.logger import Logger

    materials = Materials(training)
    rows: dict[int, dict[str, float]] = {}

    class Rows(Logger):
        name = "rows"
        version = 0

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            trained = {name: value for name, value in metrics.items() if name == "loss" or name.startswith("lr-")}
            if trained:
                rows.setdefault(step, {}).update(trained)

        def log_hyperparams(self, *arguments: Any, **named: Any) -> None:
            """Nothing."""

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = materials.model

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = materials.train_loss(
                batch, self.current_epoch, batch_idx, self.global_step, self.trainer.is_last_batch
            )
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("val_loss", materials.val_loss(batch, batch_idx), batch_size=len(batch[0]))

        def configure_optimizers(self) -> Any:
            if materials.scheduler is None:
                return materials.optimizer
            return [materials.optimizer], [{"scheduler": materials.scheduler, "interval": training.schedule}]

    with tempfile.TemporaryDirectory() as folder:
        made = [recording_hooks(materials)] if training.hooks else []
        for name, arguments in callbacks.items():
            place = {"dirpath": folder, "filename": "{step}"} if name == "ModelCheckpoint" else {}
            made.append(getattr(shipped, name)(**{**place, **_plain_keys(arguments)}))
        own = {"enable_checkpointing": True} if "ModelCheckpoint" in callbacks else {}
        logger = Rows() if options.get("logger", True) else False
        trainer = Trainer(**{**_QUIET, **own, **options, "logger": logger, "callbacks": made})
        with contextlib.ExitStack() as stack:
            clock = SimpleNamespace(**{**vars(time), "monotonic": materials.seconds})
            for module in _CLOCKS:
                stack.enter_context(mock.patch(f"lightning.pytorch.{module}.time", clock))
            trainer.fit(Module(), materials.train_data, _one_or_all(materials.val_data))
        materials.record.more = {
            "rows": [[step, row["loss"], *(row[name] for name in row if name != "loss")] for step, row in rows.items()],
            "steps": trainer.global_step,
            "batches": [trainer.num_training_batches, *trainer.num_val_batches],
            "checkpoints": sorted(int(path.stem.partition("=")[2]) for path in Path(folder).glob("*.ckpt")),
        }
    return materials.finished()


def recording_hooks(materials: Materials) -> Any:
    """A callback that records the hooks."""
    from lightning.pytorch import Callback

    def recording(name: str) -> Any:
        return lambda *_, **__: materials.hook(name)

    return type("Hooks", (Callback,), {name: recording(name) for name in HOOKS})()


def _one_or_all(val_data: list[Any]) -> Any:
    return val_data[0] if len(val_data) == 1 else val_data


def _plain_keys(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no whole numbers as keys; the schedule of a `GradientAccumulationScheduler` has."""
    return {
        name: {int(key): each for key, each in value.items()} if isinstance(value, dict) else value
        for name, value in arguments.items()
    }


def main(cases: str, records: str) -> None:
    """Train every case."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    results = {
        name: asdict(run(Training(**_tuples(case["training"])), case["trainer"], case["callbacks"]))
        for name, case in json.loads(Path(cases).read_text(encoding="utf-8")).items()
    }
    Path(records).write_text(json.dumps(results), encoding="utf-8")


def _tuples(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
