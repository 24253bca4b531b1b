"""Microseconds per micro-batch of graphtrain on several ranks, and of the loop by hand with DistributedDataParallel.

    python benchmarks/scale.py
    python benchmarks/scale.py --processes 4

The ranks are processes on this machine with one torch thread each, over gloo. Both loops run in the same processes, in
interleaved rounds: the clock is in the training step, as in `loop.py`. At two ranks both must end with the same
weights, bit for bit, or the benchmark fails.

* ddp by hand: DistributedDataParallel, clipping by norm, a step for every window.
* fit: the graph, bare.
* ddp, again: the same loop again, which shows the noise.

Synchronisations are counted for windows of 1, 4 and 16 micro-batches of each rank, with a row of metrics every 50
steps.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from loop import AGAIN as _AGAIN
from measure import Target, arguments, comparison, rounds, show, spread
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from workloads import LARGER, MAX_NORM, OF_TEN_MILLION, TINY, Batch, Training, Workload

from graphtrain import Graph, Trainer
from graphtrain.ranks import Ranks, current_ranks

DDP, FIT, AGAIN = "ddp by hand", "fit", _AGAIN.replace("by hand", "ddp by hand")
CPU = torch.device("cpu")


def ddp(training: Training) -> None:
    model, optimizer = DistributedDataParallel(training.model), training.optimizer
    for batch in training.data:
        loss = training.training_step(model, batch)
        loss.backward()
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


def fit(training: Training, of_all: list[Batch], every: int = 1, log: str = "never") -> Trainer:
    graph = Graph.load("fit").set("clip", max_norm=MAX_NORM).set("log", every=log).set("accumulate", every=every)
    trainer = training.trainer(graph.set("finish", after=f"{len(of_all)} batches"), train_data=of_all, display=None)
    trainer.run()
    return trainer


class Measured:
    """The cases of one workload on this rank."""

    def __init__(self, workload: Workload, ranks: Ranks) -> None:
        self._workload, self._ranks = workload, ranks
        data = workload.data(CPU)
        self.of_all = [batch for batch in data for _ in range(ranks.world_size)]
        self._weights: list[torch.Tensor] | None = None

    def training(self) -> Training:
        """A training on the part of this rank."""
        return Training(self._workload, self.of_all[self._ranks.rank :: self._ranks.world_size], CPU)

    def __call__(self, name: str) -> float:
        training = self.training()
        dist.barrier()
        if name == FIT:
            fit(training, self.of_all)
        else:
            ddp(training)
        weights = [weight.detach() for weight in training.model.parameters()]
        self._weights = self._weights or weights
        if self._ranks.world_size == 2:
            same = all(map(torch.equal, weights, self._weights))
            assert same, f"{self._workload.name}: the weights trained by {name} differ from those of the others"
        return training.microseconds


def synchronisations(measured: Measured, every: int) -> float:
    """How often ranks synchronise in a round."""
    trainer = fit(measured.training(), measured.of_all, every, log="50 steps")
    assert trainer._session.world is not None
    visits = trainer.progress["next_batch"]["runs"]
    return trainer._session.world.calls / visits


def rank_main(options: Namespace, ranks: Ranks) -> None:
    rows: list[dict[str, Any]] = []
    aims: list[Target] = []
    for workload in (TINY, *LARGER, OF_TEN_MILLION):
        measured = Measured(workload, ranks)
        times = rounds({name: partial(measured, name) for name in (DDP, FIT, AGAIN)}, options.rounds)
        compared = comparison(times, against=DDP)
        rows += [{"workload": workload.name, **row} for row in compared]
        by_case = {row["case"]: row for row in compared}
        noise = max(spread(times, AGAIN, DDP), abs(by_case[AGAIN]["ratio"] - 1))
        if workload is TINY:
            over = by_case[FIT]["difference"] / 1000
            aims.append(Target(f"{workload.name}: ms a batch over ddp by hand", over, at_most=0.5))
        else:
            ratio = by_case[FIT]["ratio"]
            aims.append(Target(f"{workload.name}: ratio to ddp by hand", ratio, at_most=1.02, noise=noise))
    measured = Measured(TINY, ranks)
    for every in (1, 4, 16):
        count = synchronisations(measured, every)
        aims.append(Target(f"synchronisations a round, windows of {every}", count, at_most=1.1))
    if ranks.rank == 0:
        show(f"microseconds a micro-batch of each of {ranks.world_size} ranks", rows, options.json, aims)


def on_ranks(
    description: str | None,
    of_rank: Callable[[Namespace, Ranks], None],
    further: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Run a function on every rank: this script is started once for each of them, on this machine.

    Arguments:
        further: as for `arguments`.
    """
    processes = {"--processes": {"type": int, "default": 2, "help": "how many ranks (default: 2)"}}
    options = arguments(description, rounds=5, further={**processes, **further})
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        ranks = current_ranks()
        ranks.gather(b" ")  # which begins the process group
        of_rank(options, ranks)
        return
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    world = {"WORLD_SIZE": str(options.processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **world, "RANK": str(rank)})  # noqa: S603
        for rank in range(options.processes)
    ]
    sys.exit(max(process.wait() for process in started))


if __name__ == "__main__":
    on_ranks(__doc__, rank_main)
