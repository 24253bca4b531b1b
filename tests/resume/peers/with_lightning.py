"""Lightning's Trainer, resumed by `ckpt_path` from what its `ModelCheckpoint` saved in the middle of an epoch."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import RandomSampler

from tests.rows_elsewhere import EPOCHS, Killed, SetUp, checkpoint_in, loader_of, steps_at

for _name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(_name).setLevel(logging.ERROR)


class Module(LightningModule):
    """The row as a module: its model is a submodule, what its step function keeps stays where it is."""

    def __init__(self, run: SetUp) -> None:
        super().__init__()
        self.model = run.model
        self._run = run

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self._run.train_loss(batch, step=self.global_step, epoch=self.current_epoch, batch_index=batch_idx)

    def configure_optimizers(self) -> Any:
        if self._run.scheduler is None:
            return self._run.optimizer
        return [self._run.optimizer], [{"scheduler": self._run.scheduler, "interval": "step"}]


class Kill(Callback):
    """Ends the run before the batch that follows the cut."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


def train(
    name: str, folder: Path, cut: int | None = None, resume: bool = False, made: Callable[[Any], Any] = loader_of
) -> dict[str, Any]:
    """Train a row.

    Arguments:
        made: the loader from the row's data.
    """
    run = SetUp(name)
    callbacks: list[Any] = []
    if cut is not None:
        steps = steps_at(cut, run)
        callbacks = [
            ModelCheckpoint(folder, filename="{step}", every_n_train_steps=steps, save_top_k=-1),
            Kill(cut),
        ]
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        accumulate_grad_batches=run.every,
        callbacks=callbacks,
        enable_checkpointing=cut is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(
        Module(run),
        made(run.train_data),
        ckpt_path=checkpoint_in(folder, "*.ckpt") if resume else None,
        weights_only=False if resume else None,
    )
    return run.result()


def stateful(data: Any) -> Any:
    """The row's loader as one that keeps its own position: torchdata's, which Lightning saves and restores."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = loader_of(data)
    return StatefulDataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        generator=loader.generator,
        collate_fn=loader.collate_fn,
    )


train_with_position = functools.partial(train, made=stateful)
