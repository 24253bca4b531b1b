"""The training loops of other frameworks, as their users write them; those that are not installed are left out.

Everything that a framework does beyond the step is turned off where possible, except in the case called "equipped".
The data is the list itself, so that no loader is measured.
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from workloads import MAX_NORM, Batch, Training

Loop = Callable[[Training], Any]


def ignite_engine(training: Training) -> None:
    """The step is the user's, as by hand."""
    from ignite.engine import Engine

    model, optimizer, training_step = training.model, training.optimizer, training.training_step

    def step(engine: Any, batch: Any) -> torch.Tensor:
        loss = training_step(model, batch)
        loss.backward()
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    Engine(step).run(training.data, max_epochs=1)


def accelerate(training: Training) -> None:
    """The loop is the user's; its parts go through the accelerator."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(training.model, training.optimizer)
    for batch in training.data:
        loss = training.training_step(model, batch)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


def torchtnt(training: Training) -> None:
    """A unit that does the step itself."""
    from torchtnt.framework.auto_unit import AutoUnit
    from torchtnt.framework.train import train

    class Unit(AutoUnit):
        def compute_loss(self, state: Any, data: Any) -> tuple[torch.Tensor, None]:
            return training.training_step(self.module, data), None

        def configure_optimizers_and_lr_scheduler(self, module: nn.Module) -> tuple[Any, None]:
            return training.optimizer, None

    unit = Unit(module=training.model, device=training.device, clip_grad_norm=MAX_NORM)
    train(unit, training.data, max_epochs=1)


def transformers(training: Training) -> None:
    """The model computes its loss, batches are mappings; no evaluation, logging, saving or progress bar."""
    from transformers import Trainer, TrainingArguments

    class WithLoss(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": training.training_step(self.model, (inputs, targets))}

    class OverList(Trainer):
        def get_train_dataloader(self) -> Any:
            return [{"inputs": inputs, "targets": targets} for inputs, targets in training.data]

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=1,
            max_grad_norm=MAX_NORM,
            lr_scheduler_type="constant",
            eval_strategy="no",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        OverList(WithLoss(training.model), arguments, optimizers=(training.optimizer, None)).train()


def lightning(training: Training) -> None:
    """No logger, no checkpoints, no progress bar, no summary."""
    _lightning(training, logger=False, enable_checkpointing=False, enable_progress_bar=False)


def lightning_equipped(training: Training) -> None:
    """What `fit, equipped` has: the loss on the progress bar and every 50 steps in a file, checkpoints in reach."""
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = ModelCheckpoint(folder, train_time_interval=timedelta(minutes=10))
        _lightning(training, logs=True, logger=CSVLogger(folder), callbacks=[checkpoint], log_every_n_steps=50)


class _Batches:
    """A wrapper of the list for Lightning, which takes a list as a list of loaders."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


def _lightning(training: Training, *, logs: bool = False, **options: Any) -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, batch_index: int) -> torch.Tensor:
            loss = training.training_step(self.model, batch)
            if logs:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return training.optimizer

    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        gradient_clip_val=MAX_NORM,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(Module(training.model), _Batches(training.data))


# Package, what is imported of it, and the cases it appears in.
_PEERS: tuple[tuple[str, tuple[str, ...], Mapping[str, Loop]], ...] = (
    ("pytorch-ignite", ("ignite.engine",), {"ignite {}, Engine": ignite_engine}),
    ("accelerate", ("accelerate",), {"Accelerate {}": accelerate}),
    ("torchtnt", ("torchtnt.framework.auto_unit",), {"torchtnt {}, AutoUnit": torchtnt}),
    ("transformers", ("transformers", "accelerate"), {"transformers {}, Trainer": transformers}),
    (
        "lightning",
        ("lightning.pytorch",),
        {"Lightning {}, all off": lightning, "Lightning {}, equipped": lightning_equipped},
    ),
)


def loops(terminal: Callable[[], AbstractContextManager[Any]]) -> tuple[dict[str, Loop], list[str]]:
    """The loops of the frameworks that can be imported, by name and version; and a line for each that cannot.

    Arguments:
        terminal: a span whose output nobody looks at.
    """
    _quieten()
    loops: dict[str, Loop] = {}
    missing = []
    for package, modules, cases in _PEERS:
        try:
            with terminal():
                for module in modules:
                    importlib.import_module(module)
        except Exception as error:
            missing.append(
                f"{package} is left out: importing {', '.join(modules)} raised {type(error).__name__}: {error}"
            )
            continue
        loops |= {name.format(version(package)): _on(terminal, loop) for name, loop in cases.items()}
    return loops, missing


def _on(terminal: Callable[[], AbstractContextManager[Any]], loop: Loop) -> Loop:
    def quiet(training: Training) -> None:
        with terminal(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loop(training)

    return quiet


def _quieten() -> None:
    os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"})
    for name in ("ignite", "accelerate", "torchtnt", "lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
