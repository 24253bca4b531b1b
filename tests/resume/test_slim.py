"""Slim checkpoints: what is not trained is on the disk once, and a resume is as exact as of others (14)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain import CheckpointError, Graph, Outcome, Trainer, node
from tests.fake_ranks import run_ranks
from tests.world import World, assert_exact

WIDE = 128


def trainer_of(
    run_dir: Path | None, *, slim: bool = True, edit: Callable[[Graph], Graph] = lambda graph: graph
) -> Trainer:
    """A frozen body with an adapter, which is trained."""
    torch.manual_seed(0)
    body = torch.nn.Linear(WIDE, WIDE).requires_grad_(False)
    model = torch.nn.Sequential(body, torch.nn.Dropout(0.1), torch.nn.Linear(WIDE, 2))
    graph = Graph.load("fit").set("finish", after="12 batches").set("accumulate", every=2)
    graph = graph.set("checkpoint", every="2 batches", keep=9, slim=slim)
    return Trainer(
        edit(graph),
        seed=0,
        run_dir=run_dir,
        model=model,
        optimizer=torch.optim.AdamW(model[2].parameters(), lr=0.1),
        train_data=[*torch.randn(12, 3, WIDE).unbind()],
        training_step=lambda model, batch: model(batch).square().mean(),
        display=None,
        notify=lambda line: None,
    )


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").glob("*step*"))


def inodes(run_dir: Path, name: str) -> list[int]:
    return [(path / name).stat().st_ino for path in checkpoints(run_dir)]


def test_what_is_frozen_is_written_once(tmp_path: Path) -> None:
    trainer_of(tmp_path).run()
    frozen, trained = "model.frozen.safetensors", "model.safetensors"
    paths = checkpoints(tmp_path)
    assert len(paths) == 6
    assert len({*inodes(tmp_path, frozen)}) == 1
    assert len({*inodes(tmp_path, trained)}) == 6  # an adapter that is trained between any two of them
    for path in paths:
        assert {*load_file(path / frozen)} == {"0.weight", "0.bias"}
        assert {*load_file(path / trained)} == {"2.weight", "2.bias"}
        written = sum(file.stat().st_size for file in path.iterdir() if file.name != frozen)
        assert written < (path / frozen).stat().st_size  # the rest is small


@pytest.mark.full
def test_a_cut_anywhere_is_exact(tmp_path: Path) -> None:
    it = trainer_of(None)
    options = {"seed": 0}

    def make() -> dict[str, Any]:
        return dict(trainer_of(None).resources)

    whole = assert_exact(World(it.graph.set("checkpoint", every="never"), make, options), tmp_path, at=2)
    large = trainer_of(None, slim=False, edit=lambda graph: graph.set("checkpoint", every="never"))
    large.run()
    assert whole.digest == large.digest()


@pytest.mark.full
def test_the_first_one_may_be_deleted(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, edit=lambda graph: graph.set("checkpoint", keep=1))
    trainer.run()
    (path,) = checkpoints(tmp_path)
    assert trainer_of(tmp_path).run() is Outcome.ALREADY_FINISHED
    assert torch.equal(load_file(path / "model.safetensors")["2.weight"], trainer.resources["model"][2].weight)
    assert path.name.endswith("step-6")


@node
def thaw(model: torch.nn.Module, step: int) -> None:
    """Train the body too, from the third step on."""
    model[0].requires_grad_(step >= 3)


@pytest.mark.full
def test_what_is_thawed_moves_to_the_other_file(tmp_path: Path) -> None:
    def edit(graph: Graph) -> Graph:
        return graph.insert("thaw", thaw, after="zero_grad", reads={"step": "step.steps"})

    trainer_of(tmp_path, edit=edit).run()
    names = [sorted(load_file(path / "model.safetensors")) for path in checkpoints(tmp_path)]
    assert names[:2] == [["2.bias", "2.weight"]] * 2
    assert names[-1] == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert trainer_of(tmp_path, edit=edit).run() is Outcome.ALREADY_FINISHED


@pytest.mark.full
def test_a_damaged_file_is_written_again_and_not_linked(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.run(until="4 batches")
    file = checkpoints(tmp_path)[-1] / "model.frozen.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    trainer.run()
    damaged, *others = checkpoints(tmp_path)[1:]
    with pytest.raises(CheckpointError, match="frozen"):
        trainer_of(None).run(resume=damaged)
    for path in others:
        trainer_of(None).run(resume=path)


def test_where_nothing_can_be_linked_all_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    trainer_of(tmp_path).run()
    assert len({*inodes(tmp_path, "model.frozen.safetensors")}) == 6
    assert trainer_of(tmp_path).run() is Outcome.ALREADY_FINISHED


@pytest.mark.full
def test_several_ranks_share_it_too_and_one_process_resumes(tmp_path: Path) -> None:
    def program(ranks: object) -> str:
        trainer = trainer_of(tmp_path, edit=lambda graph: graph.set("accumulate", every=1))
        trainer.run(until="8 batches")
        return trainer.digest()

    run_ranks(2, program)
    paths = checkpoints(tmp_path)
    frozen = {file.name for path in paths for file in path.glob("model.frozen.*")}
    assert frozen and all(len({*inodes(tmp_path, name)}) == 1 for name in frozen)
    assert trainer_of(tmp_path).run() is Outcome.FINISHED
