"""How long a resume takes: until the first batch in the middle of an epoch, and until a state of 500 MB is restored.

    python tools/benchmarks/resume.py --rounds 15

* The first batch: a `Loader` starts at any batch directly; a `DataLoader` draws the earlier batches again.
* The state: graphtrain makes a trainer, finds the newest checkpoint, compares the checksum of every file, loads, and
  compares the loaded state with the files. `torch.load` and `torch.distributed.checkpoint` load model and optimizer
  without such checks. All files are in the page cache. "Read alone": nothing is loaded into model and optimizer.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as distributed_checkpoint
from measure import Target, arguments, comparison, rounds, seconds, show, spread
from torch import nn
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader, Trainer
from graphtrain.data.source import Seeds, source_of
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.manifest import checkpoint_paths
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER

BATCH_SIZE = 2
BATCHES = 1_000_100
WIDTH = 1024
LAYERS = 40  # with the two moments of Adam, 12 bytes a weight: 500 MB


def resumed(make: Callable[[], Any], drawn: int) -> Callable[[], float]:
    """A case: milliseconds until the batch after so many."""

    def case() -> float:
        source = source_of(make(), seeds=Seeds(1), saving=True, notify=lambda line: None)
        batches, _, state = source.open(0)
        next(batches)  # a position that is replayed is known from the first batch on
        return 1000 * seconds(lambda: next(source.reopen(0, drawn, state)))

    return case


def first_batches(count: int) -> tuple[list[dict[str, Any]], list[Target]]:
    """Rows and targets for the first batch."""
    samples = range(BATCH_SIZE * BATCHES)
    loaders = {
        "in order": Loader(samples, BATCH_SIZE),
        "shuffled": Loader(samples, BATCH_SIZE, shuffle=True),
    }
    rows, targets = [], []
    for order, loader in loaders.items():
        early, late = f"Loader, {order}, at batch 10", f"Loader, {order}, at batch 1,000,000"
        cases = {early: resumed(lambda made=loader: made, 10), late: resumed(lambda made=loader: made, 1_000_000)}
        times = rounds(cases, count)
        rows += comparison(times, against=early)
        what = f"Loader, {order}: batch 1,000,000 over batch 10"
        targets.append(Target(what, rows[-1]["ratio"], 1.0, noise=spread(times, late, against=early)))
    few = range(BATCH_SIZE * 10_100)
    cases = {
        f"DataLoader, shuffled, at batch {drawn:,}": resumed(lambda: DataLoader(few, BATCH_SIZE, shuffle=True), drawn)
        for drawn in (10, 100, 1_000, 10_000)
    }
    times = rounds(cases, max(count // 3, 1))
    return [*rows, *comparison(times, against=next(iter(cases)))], targets


class Saved:
    """One state on the disk in three forms, and what loads it into the same model and optimizer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        self._optimizer = torch.optim.Adam(self._model.parameters(), foreach=False)
        self._trainer("1 steps").run()
        torch.save(self._state(), folder / "state.pt")
        distributed_checkpoint.save(self._state(), checkpoint_id=folder / "distributed", no_dist=True)

    def cases(self) -> dict[str, Callable[[], float]]:
        """Milliseconds to load."""
        works = {
            "torch.load": self._load,
            "torch.load, read alone": self._read_by_torch,
            "graphtrain, read alone": self._read,
            "torch.distributed.checkpoint": self._load_distributed,
            "graphtrain": self._go_on,
        }
        return {f"500 MB, {name}": lambda work=work: 1000 * seconds(work) for name, work in works.items()}

    def _go_on(self) -> None:
        self._trainer("2 steps").advance(1)

    def _read(self) -> None:
        (path,) = checkpoint_paths(self._folder / "run" / CHECKPOINTS_FOLDER)
        read_checkpoint(path)

    def _read_by_torch(self) -> Any:
        return torch.load(self._folder / "state.pt", weights_only=True)

    def _load(self) -> None:
        state = self._read_by_torch()
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _load_distributed(self) -> None:
        state = self._state()
        distributed_checkpoint.load(state, checkpoint_id=self._folder / "distributed", no_dist=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _state(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _trainer(self, until: str) -> Trainer:
        return Trainer(
            Graph.load("fit").set("finish", after=until).set("checkpoint", keep=1),
            run_dir=self._folder / "run",
            model=self._model,
            optimizer=self._optimizer,
            train_data=[torch.ones(1, WIDTH)] * 10,
            training_step=lambda model, batch: model(batch).square().mean(),
            display=None,
            notify=lambda line: None,
        )


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=15)
    warnings.simplefilter("ignore", UserWarning)  # torch.distributed warns that it runs in one process
    rows, targets = first_batches(options.rounds)
    folder = Path(tempfile.mkdtemp(prefix="graphtrain-"))
    try:
        times = rounds(Saved(folder).cases(), max(options.rounds // 3, 1))
    finally:
        shutil.rmtree(folder)
    rows += comparison(times, against="500 MB, torch.load")
    for what in ("", ", read alone"):
        case, other = f"500 MB, graphtrain{what}", f"500 MB, torch.load{what}"
        ratio = next(row["ratio"] for row in comparison(times, against=other) if row["case"] == case)
        targets.append(Target(f"{case} over torch.load", ratio, 4.0, spread(times, case, other)))
    show("milliseconds until the run continues", rows, options.json, targets)


if __name__ == "__main__":
    main()
