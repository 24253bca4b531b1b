"""Weights of sharded models in files of others, and how much of a file a rank reads; called in processes."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import torch

from graphtrain import Graph
from graphtrain.command.set_up import warm_start
from graphtrain.errors import GraphtrainError
from graphtrain.ranks import current_ranks
from graphtrain.storage.manifest import read_manifest
from tests.ranks import sharded
from tests.ranks.sharded import Case, sharded_model, trainer_of, weights

WIDTH = 384  # of layers whose pieces are much larger than all else in a checkpoint


def warm_started(case: Case, path: Path) -> tuple[dict[str, Any], float]:
    """The weights of a model after `--init`, all of each; and the bytes that this rank has read, per byte it holds."""
    from graphtrain.storage import weight_files

    model, counted, copy = sharded_model(case), [0], weight_files.copy_common

    def counting(target: torch.Tensor, box: Any, source: torch.Tensor, source_box: Any) -> int:
        count = copy(target, box, source, source_box)
        counted[0] += count * source.shape[-1]
        return count

    weight_files.copy_common = counting
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    warm_start({"model": model}, [f"model={path}"])
    weight_files.copy_common = copy
    held = sum(getattr(each, "_local_tensor", each).nbytes for each in model.state_dict().values())
    return {name: tensor.tolist() for name, tensor in weights(model).items()}, counted[0] / held


def begun(case: Case, folder: Path) -> dict[str, str]:
    """Train a wide model to an open window, and save: the digests."""
    sharded.WIDTH = WIDTH
    return sharded.leg(case, folder, 1).sharded


def resumed(case: Case, folder: Path) -> tuple[float, dict[str, str]]:
    """Resume and save: the bytes that this rank has read, per byte that it needs; and the digests of what is saved."""
    from graphtrain.storage import rank_files, resharded

    sharded.WIDTH = WIDTH
    counted, copy, read = [0], resharded.copy_common, rank_files.read_files

    def counting(target: torch.Tensor, box: Any, source: torch.Tensor, source_box: Any) -> int:
        count = copy(target, box, source, source_box)
        counted[0] += count * source.itemsize
        return count

    def counting_files(path: Path, files: Any, reader: Any) -> Any:
        counted[0] += sum(size for size, _ in files.values())
        return read(path, files, reader)

    resharded.copy_common, rank_files.read_files = counting, counting_files
    trainer = trainer_of(case, run_dir=folder)
    trainer.advance(0)
    resharded.copy_common, rank_files.read_files = copy, read
    trainer.save()
    path = max((folder / "checkpoints").glob("*-step-*"))
    manifest = read_manifest(path)
    own = [size for name, (size, _) in manifest.files.items() if not re.match(r"rank\.\d+|.*\.\d{5}\.", name)]
    own += [size for name, (size, _) in manifest.files.items() if name.startswith(f"rank.{current_ranks().rank:05d}")]
    return counted[0] / sum(own), dict(manifest.sharded)


def saved_twice(case: Case, folder: Path) -> None:
    trainer = trainer_of(case, run_dir=folder)
    for _ in range(2):
        trainer.advance(6)
        trainer.save()


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


def stopped(case: Case, folder: Path, batches: int) -> None:
    """Train so many micro-batches, and save."""
    trainer = trainer_of(case, run_dir=folder)
    trainer.run(until=f"{batches} batches")
    trainer.save()
