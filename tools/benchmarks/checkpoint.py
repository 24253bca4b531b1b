"""Saving a checkpoint of 500 MB: how long training is blocked, how long until it is on disk, how much memory it takes.

    python tools/benchmarks/checkpoint.py

The saves of graphtrain are those of one run, every fourth step; between them, in the same process, the same state is

* copied once, into preallocated memory;
* saved by `torch.save`, flushed to disk and renamed over the previous file;
* saved by `torch.distributed.checkpoint.save`, which does not flush;
* and by its `async_save`, of which the call is timed: training would be blocked for that long.

Every round is a new process, since the placement of a process's memory by the system changes the speed of copies by up
to a quarter for its whole life.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as distributed_checkpoint
from measure import Target, arguments, comparison, seconds, show, spread, torch_save
from torch import nn

import graphtrain
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER

MEGABYTES = 500
WIDTH = 1024
EVERY = 4  # steps
SAVES = 4  # of a process; the first also allocates its memory, and does not count
RESIDENT_NOISE = 0.1  # of the state: what else comes and goes in the memory of the process
STALL, WRITTEN = "graphtrain: training stands still", "graphtrain: until it is on the disk"
COPY, SAVE = "one copy of that memory", "torch.save, flushed and renamed"
DISTRIBUTED, ASYNCHRONOUS = "torch.distributed.checkpoint", "its async_save: training stands still"


def settle_disk(folder: Path) -> None:
    """Before every save: nothing waits to be written, and the kernel has memory at hand for the files to come.

    On a virtual machine memory that is touched for the first time makes a write take ten times as long.
    """
    os.sync()
    file = folder / "warm"
    block = bytes(1 << 20)
    with file.open("wb", buffering=0) as opened:
        for _ in range(2 * MEGABYTES):
            opened.write(block)
        os.fsync(opened.fileno())
    file.unlink()


class Peers:
    """Other ways to save what the run saves."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self._model, self._optimizer, self._folder = model, optimizer, folder
        self._copies: list[torch.Tensor] = []

    def measure(self) -> dict[str, float]:
        """Seconds by name."""
        seconds_by_name = {COPY: seconds(self._copy)}
        for name, save in ((SAVE, self._save), (DISTRIBUTED, self._save_distributed)):
            settle_disk(self._folder)
            seconds_by_name[name] = seconds(save)
        settle_disk(self._folder)
        under_way: list[Any] = []
        seconds_by_name[ASYNCHRONOUS] = seconds(lambda: under_way.append(self._save_asynchronously()))
        under_way[0].result()
        return seconds_by_name

    def _state(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def _copy(self) -> None:
        state = self._optimizer.state
        tensors = [
            tensor for weight in self._model.parameters() for tensor in (weight.detach(), *state[weight].values())
        ]
        if not self._copies:
            self._copies = [torch.empty_like(tensor) for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor)

    def _save(self) -> None:
        torch_save(self._state(), self._folder / "state.pt")

    def _save_distributed(self) -> None:
        distributed_checkpoint.save(self._state(), checkpoint_id=self._folder / "distributed", no_dist=True)

    def _save_asynchronously(self) -> Any:
        folder = self._folder / "distributed"
        return distributed_checkpoint.async_save(self._state(), checkpoint_id=folder, no_dist=True)


def measured() -> tuple[dict[str, float], int, int]:
    """Median seconds by name, of one process; bytes of the state, and bytes that saving holds."""
    # torch.distributed warns, also from its own thread, that it runs in one process and that it overwrites files.
    warnings.simplefilter("ignore", UserWarning)
    folder = Path(tempfile.mkdtemp(prefix="graphtrain-"))
    try:
        return _measured_in(folder)
    finally:
        shutil.rmtree(folder)


def _measured_in(folder: Path) -> tuple[dict[str, float], int, int]:
    # Weights and the two moments of Adam: three times four bytes a weight.
    layers = MEGABYTES * 10**6 // (12 * WIDTH * WIDTH)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False)
    peers = Peers(model, optimizer, folder)
    run_dir = folder / "run"
    figures: dict[str, list[float]] = defaultdict(list)
    without: list[int] = []
    held: list[int] = []
    batches, saved_before = 0, 0.0

    def training_step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        nonlocal batches, saved_before
        batches += 1
        if batches > EVERY and batches % EVERY == 1:  # right after a save
            begun = time.perf_counter()
            stall = trainer.seconds["save"] - saved_before
            _wait_until(lambda: bool(_finished(run_dir) - before))
            figures[STALL].append(stall)
            figures[WRITTEN].append(stall + time.perf_counter() - begun)
            held.append(_resident_bytes())
            for name, figure in peers.measure().items():
                figures[name].append(figure)
        elif not batches % EVERY:
            _wait_until(lambda: len(_finished(run_dir)) <= 1)  # the previous one is removed
            settle_disk(folder)
            saved_before = trainer.seconds.get("save", 0.0)
            before.clear()
            before.update(_finished(run_dir))
        if batches <= EVERY:
            without.append(_resident_bytes())
        return model(batch).square().mean()

    before: set[str] = set()
    trainer = graphtrain.Trainer(
        graphtrain.Graph.load("fit")
        .set("checkpoint", every=f"{EVERY} steps", keep=1)
        .set("log", every="never")
        .set("finish", after=f"{EVERY * SAVES + 1} steps"),
        run_dir=run_dir,
        model=model,
        optimizer=optimizer,
        train_data=[torch.ones(1, WIDTH)] * 10_000,
        training_step=training_step,
        display=None,
        notify=lambda line: None,
    )
    trainer.run()
    size = 3 * 4 * sum(weight.numel() for weight in model.parameters())
    # Of the first save: later saves also see the memory that the other ways of saving have left behind.
    return {name: statistics.median(values[1:]) for name, values in figures.items()}, size, held[0] - max(without)


def _finished(run_dir: Path) -> set[str]:
    """The names of the complete checkpoints."""
    return {path.name for path in (run_dir / CHECKPOINTS_FOLDER).iterdir() if not path.name.startswith(".")}


def _wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.001)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=5)
    counted: dict[str, list[float]] = defaultdict(list)
    held = []
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for _ in range(options.rounds):
            figures, size, held_bytes = processes.submit(measured).result()
            held.append(held_bytes / size)
            for name, figure in figures.items():
                counted[name].append(figure)
    rows = [
        {
            "case": row["case"],
            "median ms": row["median"] * 1000,
            "of one copy": row["ratio"],
            "of torch.save": other["ratio"],
        }
        for row, other in zip(comparison(counted, against=COPY), comparison(counted, against=SAVE), strict=True)
    ]
    named = {row["case"]: row for row in rows}
    targets = [
        Target(
            "training stands still, copies of that memory",
            named[STALL]["of one copy"],
            1.15,
            spread(counted, STALL, COPY),
        ),
        Target(
            "training stands still, over torch.save", named[STALL]["of torch.save"], 0.1, spread(counted, STALL, SAVE)
        ),
        Target("until it is on the disk, over torch.save", named[WRITTEN]["of torch.save"], 1.0),
        Target("memory that saving holds, copies of the state", statistics.median(held), 1.0, noise=RESIDENT_NOISE),
    ]
    title = f"a checkpoint of {size / 1e6:.0f} MB; saving holds {statistics.median(held):.2f} copies of it"
    show(title, rows, options.json, targets)


if __name__ == "__main__":
    main()
