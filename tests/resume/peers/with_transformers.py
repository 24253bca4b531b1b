"""The Trainer of Transformers, resumed by `resume_from_checkpoint` from what it saved in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import RandomSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from tests.rows_elsewhere import EPOCHS, Killed, SetUp, checkpoint_in, loader_of, steps_at


class Kill(TrainerCallback):
    """Ends the run as soon as its checkpoint is written."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raise Killed


class RowTrainer(Trainer):
    """The row's loss, and its loader where that is not what a Trainer makes of a data set by itself."""

    def __init__(self, run: SetUp, loader: Any, **options: Any) -> None:
        self.run = run
        self.loader = loader
        super().__init__(**options)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        return self.run.train_loss(inputs["batch"], step=self.state.global_step, epoch=int(self.state.epoch or 0))

    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader() if self.loader is None else self.accelerator.prepare(self.loader)


class Named:
    """A batch as the Trainer expects it: a mapping."""

    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> dict[str, Any]:
        return {"batch": self.collate(samples)}


def train(name: str, folder: Path, cut: int | None = None, resume: bool = False) -> dict[str, Any]:
    """Train a row."""
    run = SetUp(name)
    loader = loader_of(run.train_data)
    collate = Named(loader.collate_fn)
    # What shuffles by the global generator is left to the Trainer, whose own sampler is seeded.
    shuffles = isinstance(loader.sampler, RandomSampler) and loader.generator is None
    loader.collate_fn = collate
    arguments = TrainingArguments(
        output_dir=str(folder / "run"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=loader.batch_size,
        gradient_accumulation_steps=run.every,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_strategy="no" if cut is None else "steps",
        save_steps=1 if cut is None else steps_at(cut, run),
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        seed=1,
    )
    trainer = RowTrainer(
        run,
        None if shuffles else loader,
        model=run.model,
        args=arguments,
        train_dataset=loader.dataset,
        data_collator=collate,
        optimizers=(run.optimizer, run.scheduler),
        callbacks=[] if cut is None else [Kill()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=str(checkpoint_in(folder, "run/checkpoint-*")) if resume else None)
    return run.result()
