"""Many small tensors: a save and a resume of a model with 50,000 parameters, and a save of a list of 100,000 tensors.

    python tools/benchmarks/tensors.py --rounds 3

* The model: with the two moments and the counter of Adam 200,000 tensors. A save is timed until it is on the disk; a
  resume makes a trainer, reads the checkpoint, loads it, and compares what was loaded with it. `torch.save` flushes its
  file too. `torch.load` and `load_state_dict` are left out: they take ten times as long.
* The list: a state is taken apart, staged, hashed and written, and `torch.save` writes the same list.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import Target, arguments, comparison, rounds, seconds, show, spread
from torch import nn

from graphtrain import Graph, Trainer
from graphtrain.storage.checkpoint import new_folder, write_manifest
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.rank_files import manifest_of, write_files
from graphtrain.storage.state_files import StagedState

PARAMETERS = 50_000
SHORT, LONG = 10_000, 100_000
SAVE, RESUME = f"{PARAMETERS:,} parameters, a save", f"{PARAMETERS:,} parameters, a resume"
BY_TORCH = f"{PARAMETERS:,} parameters, torch.save"


def saved_by_torch(state: Any, file: Path) -> None:
    with file.open("wb") as opened:
        torch.save(state, opened)
        opened.flush()
        os.fsync(opened.fileno())


class Model:
    """A run of a model with many parameters."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model = nn.ParameterList(torch.randn(4) for _ in range(PARAMETERS))
        self._optimizer = torch.optim.Adam(self._model.parameters())
        self._saving = self._trainer()
        self._saving.run(until="1 batches")
        self._batches = 1

    def cases(self) -> dict[str, Callable[[], float]]:
        """Microseconds a parameter."""
        works = {SAVE: self._save, RESUME: self._resume, BY_TORCH: self._save_by_torch}
        return {name: lambda work=work: work() * 1e6 / PARAMETERS for name, work in works.items()}

    def _save(self) -> float:
        # A batch before it: a save at the same moment is none.
        self._batches += 1
        self._saving.run(until=f"{self._batches} batches")
        return seconds(self._saving.save)

    def _resume(self) -> float:
        # Of a copy: once a run was resumed elsewhere, this trainer would save nothing more.
        shutil.rmtree(self._folder / "copy", ignore_errors=True)
        shutil.copytree(self._folder / "run", self._folder / "copy")
        return seconds(lambda: self._trainer("copy").advance(1))

    def _save_by_torch(self) -> float:
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return seconds(lambda: saved_by_torch(state, self._folder / "state.pt"))

    def _trainer(self, name: str = "run") -> Trainer:
        return Trainer(
            Graph.load("fit")
            .set("finish", after="1000000 batches")
            .set("checkpoint", keep=1, mode="sync", every="never"),
            run_dir=self._folder / name,
            model=self._model,
            optimizer=self._optimizer,
            train_data=[torch.ones(1)] * 10,
            training_step=lambda model, batch: torch.stack([*model]).sum() * batch.mean(),
            display=None,
            notify=lambda line: None,
        )


class Listed:
    """A list of tensors, as a resource or a slot may hold."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._tensors = [torch.randn(4) for _ in range(count)]
        self._buffers: dict[str, torch.Tensor] = {}

    def cases(self) -> dict[str, Callable[[], float]]:
        """Microseconds a tensor."""
        per_tensor = 1e6 / self._count
        return {
            f"a list of {self._count:,}, a save": lambda: per_tensor * seconds(self._save),
            f"a list of {self._count:,}, torch.save": lambda: (
                per_tensor * seconds(lambda: saved_by_torch(self._tensors, self._folder / "list.pt"))
            ),
        }

    def _save(self) -> None:
        path = self._folder / "000001-step-1"
        shutil.rmtree(path, ignore_errors=True)
        staged = StagedState({"resources": {"memory": {"list": self._tensors}}}, {}, self._buffers)
        with new_folder(path, staged.abandoned) as folder:
            files = write_files(folder, 0, staged)
            report = {"files": files, "digest": staged.digest(files)}
            write_manifest(folder, manifest_of(Manifest(), staged, None, [report]))


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=3)
    folder = Path(tempfile.mkdtemp(prefix="graphtrain-"))
    try:
        short, long = Listed(folder, SHORT).cases(), Listed(folder, LONG).cases()
        lists = rounds({**short, **long}, options.rounds)
        times = rounds(Model(folder).cases(), options.rounds, warm_up=0)
    finally:
        shutil.rmtree(folder)
    (short_save, _), (long_save, long_by_torch) = short, long
    rows = [*comparison(times, against=SAVE), *comparison(lists, against=long_by_torch)]
    ratios = {row["case"]: row["ratio"] for row in rows}
    over_short = comparison(lists, against=short_save)
    linear = next(row["ratio"] for row in over_short if row["case"] == long_save)
    targets = [
        Target(f"{PARAMETERS:,} parameters: a resume over a save", ratios[RESUME], 2.0, spread(times, RESUME, SAVE)),
        Target(
            f"a list of {LONG:,}: a save over torch.save",
            ratios[long_save],
            1.0,
            spread(lists, long_save, long_by_torch),
        ),
        Target("per tensor of a list: 100,000 over 10,000", linear, 1.0, spread(lists, long_save, short_save)),
    ]
    show("microseconds for each parameter, and each tensor of a list", rows, options.json, targets)


if __name__ == "__main__":
    main()
