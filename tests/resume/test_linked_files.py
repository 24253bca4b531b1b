"""Files that are the same in two checkpoints are on the disk once, and a resume is as exact as of others (12, 14)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain import CheckpointError, Graph, Outcome, Trainer
from tests.fake_ranks import run_ranks

WIDE, FROZEN, TRAINED = 128, "teacher.safetensors", "model.safetensors"


def trainer_of(run_dir: Path | None) -> Trainer:
    """A frozen teacher, and a model that is trained to do the same."""
    torch.manual_seed(0)
    teacher = torch.nn.Linear(WIDE, WIDE).requires_grad_(False)
    model = torch.nn.Linear(WIDE, WIDE)
    graph = Graph.load("fit").set("finish", after="12 batches").set("checkpoint", every="2 batches", keep=9)
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        model=model,
        teacher=teacher,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.1),
        train_data=[*torch.randn(12, 3, WIDE).unbind()],
        training_step=lambda model, batch: (model(batch) - teacher(batch)).square().mean(),
        display=None,
        notify=lambda line: None,
    )


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("*step*"))


def inodes(run_dir: Path, name: str) -> list[int]:
    return [(path / name).stat().st_ino for path in checkpoints(run_dir)]


def test_what_is_frozen_is_written_once(tmp_path: Path) -> None:
    trainer_of(tmp_path).run(until="8 batches")
    trainer = trainer_of(tmp_path)
    trainer.run()
    assert len(checkpoints(tmp_path)) == 6
    assert len({*inodes(tmp_path, FROZEN)}) == 1
    assert len({*inodes(tmp_path, TRAINED)}) == 6  # trained between any two of them
    for path in checkpoints(tmp_path):
        assert torch.equal(load_file(path / FROZEN)["weight"], trainer.resources["teacher"].weight)


@pytest.mark.full
def test_the_first_one_may_be_deleted(tmp_path: Path) -> None:
    trainer_of(tmp_path).run()
    for path in checkpoints(tmp_path)[:-1]:
        (path / FROZEN).unlink()
    assert trainer_of(tmp_path).run() is Outcome.ALREADY_FINISHED


@pytest.mark.full
def test_a_damaged_file_is_written_again_and_not_linked(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.run(until="4 batches")
    file = checkpoints(tmp_path)[-1] / FROZEN
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    trainer.run()
    damaged, *others = checkpoints(tmp_path)[1:]
    with pytest.raises(CheckpointError, match="teacher"):
        trainer_of(None).run(resume=damaged)
    for path in others:
        trainer_of(None).run(resume=path)


def test_where_nothing_can_be_linked_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    trainer_of(tmp_path).run()
    assert len({*inodes(tmp_path, FROZEN)}) == 6
    assert trainer_of(tmp_path).run() is Outcome.ALREADY_FINISHED


@pytest.mark.full
def test_several_ranks_share_it_too_and_one_process_resumes(tmp_path: Path) -> None:
    def program(ranks: object) -> str:
        trainer = trainer_of(tmp_path)
        trainer.run(until="8 batches")
        return trainer.digest()

    run_ranks(2, program)
    assert len({*inodes(tmp_path, FROZEN)}) == 1
    assert trainer_of(tmp_path).run() is Outcome.FINISHED
