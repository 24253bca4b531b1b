"""Microseconds per micro-batch of graphtrain on several ranks, and of the loop by hand with DistributedDataParallel.

    python tools/benchmarks/scale.py
    python tools/benchmarks/scale.py --processes 4
    python tools/benchmarks/scale.py --processes 4 --sharded

The ranks are processes on this machine with one torch thread each, over gloo. Both loops run in the same processes, in
interleaved rounds: the clock is in the training step, as in `loop.py`. At two ranks both must end with the same
weights, bit for bit, or the benchmark fails; those of sharded models are compared to 0.1 %, since torch adds up their
norms in another order.

* by hand: DistributedDataParallel, or `fully_shard` of each layer and the model; clipping by norm, a step for every
  window.
* fit: the graph, bare.
* by hand, again: the same loop again, which shows the noise.

Synchronisations of replicated models are counted for windows of 1, 4 and 16 micro-batches of each rank, with a row of
metrics every 50 steps.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from loop import AGAIN
from measure import Target, arguments, comparison, rounds, show, spread
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from workloads import LARGER, MAX_NORM, OF_TEN_MILLION, TINY, Batch, Training, Transformer, Workload

from graphtrain import Graph, Trainer
from graphtrain.program.agreement import Agreement
from graphtrain.ranks import Ranks, current_ranks

DDP, FIT = "by hand", "fit"
CPU = torch.device("cpu")


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= 1e-3 * other.norm())


def sharded(model_of: Callable[[], nn.Module], mesh: Any) -> nn.Module:
    """The model, with each of its layers sharded by itself."""
    model = model_of()
    kind = nn.TransformerEncoderLayer if isinstance(model, Transformer) else nn.Linear
    for layer in [part for part in model.modules() if isinstance(part, kind)]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def ddp(training: Training) -> None:
    optimizer = training.optimizer
    is_sharded = isinstance(training.model, FSDPModule)
    model = training.model if is_sharded else DistributedDataParallel(training.model)
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
        weights = [getattr(weight, "_local_tensor", weight).detach() for weight in training.model.parameters()]
        self._weights = self._weights or weights
        if self._ranks.world_size == 2:
            is_sharded = isinstance(training.model, FSDPModule)
            same = all(map(close if is_sharded else torch.equal, weights, self._weights))
            assert same, f"{self._workload.name}: the weights trained by {name} differ from those of the others"
        return training.microseconds


def synchronisations(measured: Measured, every: int) -> float:
    """How often ranks synchronise in a round."""
    synchronise, calls = Agreement.synchronise, []

    def counted(agreement: Agreement, *arguments: Any, **known: Any) -> Any:
        calls.append(arguments)
        return synchronise(agreement, *arguments, **known)

    with mock.patch.object(Agreement, "synchronise", counted):
        trainer = fit(measured.training(), measured.of_all, every, log="50 steps")
    return len(calls) / int(trainer.progress["next_batch"]["runs"])


def rank_main(options: Namespace, ranks: Ranks) -> None:
    rows: list[dict[str, Any]] = []
    aims: list[Target] = []
    workloads = [TINY, *LARGER, OF_TEN_MILLION]
    if options.sharded:
        mesh = ranks.mesh("cpu", (ranks.world_size,))
        workloads = [replace(each, model=partial(sharded, each.model, mesh)) for each in workloads[1:]]
    for workload in workloads:
        measured = Measured(workload, ranks)
        times = rounds({name: partial(measured, name) for name in (DDP, FIT, AGAIN)}, options.rounds)
        compared = comparison(times, against=DDP)
        rows += [{"workload": workload.name, **row} for row in compared]
        by_case = {row["case"]: row for row in compared}
        noise = max(spread(times, AGAIN, DDP), abs(by_case[AGAIN]["ratio"] - 1))
        if workload is TINY:
            over = by_case[FIT]["difference"] / 1000
            aims.append(Target(f"{workload.name}: ms a batch over by hand", over, at_most=0.5))
        else:
            ratio = by_case[FIT]["ratio"]
            aims.append(Target(f"{workload.name}: ratio to by hand", ratio, at_most=1.02, noise=noise))
    measured = Measured(TINY, ranks)
    for every in () if options.sharded else (1, 4, 16):
        count = synchronisations(measured, every)
        aims.append(Target(f"synchronisations a round, windows of {every}", count, at_most=1.1))
    if ranks.rank == 0:
        which = "sharded models" if options.sharded else "replicated models"
        show(f"microseconds a micro-batch of each of {ranks.world_size} ranks, {which}", rows, options.json, aims)


def on_ranks(
    description: str | None,
    of_rank: Callable[[Namespace, Ranks], None],
    further: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Run a function on every rank: this script is started once for each of them, on this machine.

    Arguments:
        further: as for `arguments`.
    """
    processes = {
        "--processes": {"type": int, "default": 2, "help": "how many ranks (default: 2)"},
        "--sharded": {"action": "store_true", "help": "models sharded by fully_shard"},
    }
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
