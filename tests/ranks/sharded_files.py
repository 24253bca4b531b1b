"""Weights of sharded models in files; called in processes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import torch

from graphtrain import Graph, Trainer
from graphtrain.command.set_up import warm_start
from graphtrain.errors import GraphtrainError
from graphtrain.ranks import current_ranks
from tests.ranks import sharded
from tests.ranks.sharded import Case, sharded_model, trainer_of, weights


def warm_started(case: Case, path: Path) -> dict[str, Any]:
    """The weights of a model after `--init`, all of each."""
    model = sharded_model(case)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    warm_start({"model": model}, [f"model={path}"])
    return {name: tensor.tolist() for name, tensor in weights(model).items()}


def finished(case: Case, folder: Path) -> dict[str, Any]:
    """Train to the end, and save: all of each parameter."""
    trainer = trainer_of(case, run_dir=folder)
    trainer.run()
    return sharded.parameters(trainer)


def to_the_end_of_a_window(trainer: Trainer, steps: int) -> None:
    """Train so many steps, and save behind the window."""
    trainer.run(until=f"{steps} steps")
    while trainer.progress["accumulate"]["count"]:
        trainer.advance()
    trainer.save()


def saved_twice(case: Case, folder: Path) -> None:
    trainer = trainer_of(case, run_dir=folder)
    for steps in (1, 2):
        to_the_end_of_a_window(trainer, steps)


def told(case: Case, folders: list[Path]) -> list[str]:
    """What is said when runs are resumed, a line each, and the checkpoint that was taken."""
    texts = []
    for folder in folders:
        lines: list[str] = []
        try:
            trainer = trainer_of(case, run_dir=folder, notify=lines.append)
            trainer.advance(0)
        except GraphtrainError as error:
            lines.append(error.message)
        texts.append("\n".join(lines))
    return texts


def full_disk(case: Case, folder: Path) -> tuple[str, list[Path]]:
    """What a save says when the disk of rank 1 is full, and the checkpoints that there are."""
    from graphtrain.resume import rank_saves

    def full(*words: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    trainer = trainer_of(case, run_dir=folder)
    trainer.advance(6)
    if current_ranks().rank == 1:
        rank_saves.write_files = full  # type: ignore[assignment]
    try:
        trainer.save()
    except GraphtrainError as error:
        return error.message, [*(folder / "checkpoints").glob("*-step-*")]
    return "", []


def swa(graph: Graph) -> Graph:
    return graph.overlay("swa").set("swa", every="1 steps")


def averaged(case: Case) -> dict[str, Any]:
    """The mean of the weights after every step."""
    trainer = trainer_of(case, swa, swa_model=sharded_model(case).requires_grad_(False))
    trainer.run()
    return sharded.parameters(trainer, "swa_model")


def refusals(case: Case) -> list[str]:
    """What is said of what a sharded model cannot do."""
    texts = []
    for resource in ("swa_model", "optimizer"):
        parameters = [each for each in sharded_model(case).parameters() if each.requires_grad]
        changed = {"optimizer": torch.optim.LBFGS(parameters)} if resource == "optimizer" else {}
        try:
            trainer_of(case, swa if not changed else sharded.same, **changed).run()
        except GraphtrainError as error:
            texts.append(f"{error.message}; {error.hint}")
    return texts


def crossed(case: Case, folder: Path) -> tuple[str, dict[str, Any]]:
    """Resume what another kind of model has saved, to the end: the error or the parameters."""
    try:
        trainer, other = trainer_of(case, run_dir=folder), trainer_of(case)
        trainer.advance(0)
        other.load(max((folder / "checkpoints").glob("*-step-*")))
        assert sharded.parameters(other) == sharded.parameters(trainer)
        trainer.run()
    except GraphtrainError as error:
        return f"{error.message}; {error.hint}", {}
    return "", sharded.parameters(trainer)


def stopped(case: Case, folder: Path, steps: int) -> None:
    """Train so many steps, and save behind the window."""
    to_the_end_of_a_window(trainer_of(case, run_dir=folder), steps)
