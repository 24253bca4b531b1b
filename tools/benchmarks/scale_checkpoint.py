"""How long a save of several ranks stops them, and how long a resume takes, beside torch.distributed.checkpoint.

    python tools/benchmarks/scale_checkpoint.py
    python tools/benchmarks/scale_checkpoint.py --processes 4
    python tools/benchmarks/scale_checkpoint.py --processes 4 --sharded

A model of 100 MB, replicated or sharded, trained without momentum. The ranks are processes on this machine over gloo,
with one torch thread each.

* stall: the call that begins a save, which then goes on beside the training: `dcp.async_save`, and graphtrain's. Both
  wait first until the save before is over, which is not counted. The slowest rank counts.
* load: `dcp.load` into the model; graphtrain's files, with the checksum of each, into the model; and a whole resume,
  which also compares the ranks, the data and what `setup` made.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from measure import Target, comparison, rounds, show
from scale import on_ranks, sharded

from graphtrain import Graph, Trainer
from graphtrain.ranks import Ranks
from graphtrain.resume.sharded import assembled
from graphtrain.storage.checkpoint import read_checkpoint

DCP_STALL, STALL = "dcp.async_save", "graphtrain, save"
DCP_LOAD, LOAD, RESUME = "dcp.load", "graphtrain, load", "graphtrain, resume"
LAYERS, WIDTH = 25, 1000  # 25 M parameters


def replicated() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def trainer_of(run_dir: Path | None, model: torch.nn.Module) -> Trainer:
    return Trainer(
        Graph.load("fit").set("checkpoint", every="never").set("finish", after="100 steps"),
        run_dir=run_dir,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        train_data=[torch.ones(2, WIDTH)] * 100,
        training_step=lambda model, batch: model(batch).square().mean(),
        notify=lambda line: None,
        display=None,
    )


class Measured:
    """The cases on this rank, for models that `model_of` makes."""

    def __init__(self, ranks: Ranks, folder: Path, model_of: Callable[[], torch.nn.Module]) -> None:
        self._ranks, self._folder, self._model_of = ranks, folder, model_of
        self._model = model_of()
        self._run_dir = folder / "run"
        self._trainer = trainer_of(self._run_dir, self._model)
        self._trainer.run(until="1 steps")
        self._number = 0
        # So that what is allocated once is there.
        self.save()
        self.dcp_save()

    def _slowest(self, seconds: float) -> float:
        slowest = torch.tensor(seconds)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return 1000 * float(slowest)

    def save(self) -> float:
        trainer = self._trainer
        dist.barrier()
        with trainer._run.writer.completed():
            begun = time.perf_counter()
            trainer._run.writer.save(trainer._run.requests.policy)
            seconds = time.perf_counter() - begun
        return self._slowest(seconds)

    def dcp_save(self) -> float:
        self._number += 1
        path = self._folder / f"dcp-{self._number}"
        dist.barrier()
        begun = time.perf_counter()
        future: Any = dcp.async_save({"model": self._model.state_dict()}, checkpoint_id=path)
        seconds = time.perf_counter() - begun
        future.result()
        if self._ranks.rank == 0 and self._number > 1:
            shutil.rmtree(self._folder / f"dcp-{self._number - 1}")
        return self._slowest(seconds)

    def load(self) -> float:
        model, path = self._model_of(), max((self._run_dir / "checkpoints").iterdir())
        dist.barrier()
        begun = time.perf_counter()
        rank, world_size = self._ranks.rank, self._ranks.world_size
        read, _ = assembled(read_checkpoint(path, rank=rank, world_size=world_size), [model], rank)
        model.load_state_dict(read.sections["resources"]["model"])
        return self._slowest(time.perf_counter() - begun)

    def resume(self) -> float:
        trainer = trainer_of(self._run_dir, self._model_of())
        dist.barrier()
        begun = time.perf_counter()
        trainer.advance(0)
        return self._slowest(time.perf_counter() - begun)

    def dcp_load(self) -> float:
        model = self._model_of()
        state = {"model": model.state_dict()}
        dist.barrier()
        begun = time.perf_counter()
        dcp.load(state, checkpoint_id=self._folder / f"dcp-{self._number}")
        model.load_state_dict(state["model"])
        return self._slowest(time.perf_counter() - begun)


def rank_main(options: Namespace, ranks: Ranks) -> None:
    model_of = replicated
    if options.sharded:
        model_of = partial(sharded, replicated, ranks.mesh("cpu", (ranks.world_size,)))
    folders = [tempfile.mkdtemp(prefix="graphtrain-") if ranks.rank == 0 else None]
    dist.broadcast_object_list(folders)
    assert folders[0] is not None, "broadcast"
    measured = Measured(ranks, Path(folders[0]), model_of)
    cases: dict[str, Callable[[], float]] = {DCP_STALL: measured.dcp_save, STALL: measured.save}
    stalls = comparison(rounds(cases, options.rounds), against=DCP_STALL)
    cases = {DCP_LOAD: measured.dcp_load, LOAD: measured.load, RESUME: measured.resume}
    loads = comparison(rounds(cases, options.rounds), against=DCP_LOAD)
    dist.barrier()
    if ranks.rank == 0:
        shutil.rmtree(folders[0])
        aims = [Target("load with checksums, ratio to dcp.load", loads[1]["ratio"], at_most=1.2)]
        if not options.sharded:  # a sharded one is copied by both, and nothing else
            aims.append(Target("stall of a save, ratio to dcp.async_save", stalls[1]["ratio"], at_most=0.3))
        which = "sharded" if options.sharded else "replicated"
        show(f"milliseconds, {ranks.world_size} ranks, 100 MB, {which}", [*stalls, *loads], options.json, aims)


if __name__ == "__main__":
    on_ranks(__doc__, rank_main)
