"""The teacher of a distillation: what a checkpoint has of it, and what a run does with one that it must not train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphtrain import Trainer
from tests.gallery.procedure import assert_equal, tensors
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


def files_of_the_teacher(run_dir: Path) -> list[Path]:
    return [path for path in run_dir.glob("checkpoints/*/*") if "teacher" in path.name and "safetensors" in path.name]


def test_its_weights_are_written_once(tmp_path: Path) -> None:
    trained(tmp_path)
    files = [path for path in files_of_the_teacher(tmp_path) if "frozen" in path.name]
    assert len(files) >= 3
    assert len({path.stat().st_ino for path in files}) == 1


@pytest.mark.full
@pytest.mark.parametrize("cut", ["2 steps", "7 batches"])
def test_it_need_not_be_written_at_all(cut: str, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    trained(tmp_path / "cut", cut, not_state="teacher")
    assert not files_of_the_teacher(tmp_path / "cut")
    resumed = trained(tmp_path / "cut", not_state="teacher")
    assert_equal(tensors(resumed.resources, PROCEDURE.compared), tensors(whole.resources, PROCEDURE.compared))


def test_it_is_neither_trained_nor_in_training_mode(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    teacher = trainer.resources["teacher"]
    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert torch.equal(teacher[1].running_mean, PROCEDURE.resources()["teacher"][1].running_mean)
