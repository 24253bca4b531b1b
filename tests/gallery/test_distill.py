"""The teacher of a distillation: what a checkpoint has of it, and what a run does with one that it must not train."""

from __future__ import annotations

from pathlib import Path

import torch

from graphtrain import Trainer
from tests.gallery.procedures.distill import PROCEDURE


def trained(run_dir: Path, until: str | None = None, **options: str) -> Trainer:
    trainer = Trainer(
        PROCEDURE.graph().set("checkpoint", keep=10),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        **options,
        **PROCEDURE.resources(),
    )
    trainer.run(until=until)
    return trainer


def test_it_is_neither_trained_nor_in_training_mode(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    teacher = trainer.resources["teacher"]
    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert torch.equal(teacher[1].running_mean, PROCEDURE.resources()["teacher"][1].running_mean)
