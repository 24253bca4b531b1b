"""Milliseconds per step of the ways to exchange gradients, in turn step by step: for a machine with other load.

    python tools/benchmarks/scale_exchange.py
    python tools/benchmarks/scale_exchange.py --steps 200 --processes 4

`scale.py` compares whole trainings, between which the load of a machine changes. Here the ways take turns with every
step, each with its own model, and a step begins and ends on all ranks at once. Without the graph: what it adds, all of
graphtrain's ways have alike.

* by hand: DistributedDataParallel.
* after: the exchange after the backward pass, as with `exchange.overlap = false`.
* within: the exchange as it is by default: large sums begin within the pass.
* no exchange: each rank for itself, which is what is left if exchanging costs nothing.

At two ranks the first three must end with the same weights, bit for bit, or the benchmark fails.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from loop import AGAIN
from measure import Target, comparison, show, spread
from scale import CPU, DDP, on_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from workloads import LARGER, MAX_NORM, OF_TEN_MILLION, TINY, Training, Workload

from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.ranks import Ranks

AFTER, WITHIN, ALONE = "after", "within", "no exchange"
CASES = (DDP, AFTER, WITHIN, AGAIN, ALONE)
WARM_UP = 5


def step_of(case: str, training: Training, ranks: Ranks) -> Callable[[Any], None]:
    """A step with one batch."""
    agreement = Agreement(ranks, Requests())
    parameters, optimizer = list(training.model.parameters()), training.optimizer
    model = DistributedDataParallel(training.model) if case in (DDP, AGAIN) else training.model

    def step(batch: Any) -> None:
        if case == WITHIN:
            agreement.begin(parameters)
        loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        agreement.backward(loss / ranks.world_size if case in (AFTER, WITHIN) else loss)
        if case in (AFTER, WITHIN):
            agreement.exchange(parameters, {})
        clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measured(workload: Workload, ranks: Ranks, count: int) -> dict[str, list[float]]:
    """Milliseconds of each step, by case."""
    batches = workload.data(CPU)[: 20 * ranks.world_size][ranks.rank :: ranks.world_size]
    trainings = {case: Training(workload, batches, CPU) for case in CASES}
    steps = {case: step_of(case, training, ranks) for case, training in trainings.items()}
    times: dict[str, list[float]] = {case: [] for case in CASES}
    for number in range(-WARM_UP, count):
        first = number % len(CASES)
        for case in (*CASES[first:], *CASES[:first]):
            dist.barrier()
            begun = time.perf_counter()
            steps[case](batches[number % len(batches)])
            dist.barrier()
            if number >= 0:
                times[case].append(1000 * (time.perf_counter() - begun))
    if ranks.world_size == 2:
        weights = [[*trainings[case].model.parameters()] for case in (DDP, AFTER, WITHIN)]
        assert all(torch.equal(*pair) for other in weights[1:] for pair in zip(weights[0], other, strict=True))
    return times


def rank_main(options: Namespace, ranks: Ranks) -> None:
    rows: list[dict[str, Any]] = []
    aims: list[Target] = []
    counts = {4 * options.steps: TINY, options.steps: LARGER[0], options.steps // 4: OF_TEN_MILLION}
    for count, workload in counts.items():
        times = measured(workload, ranks, count)
        rows += [{"workload": workload.name, **row} for row in comparison(times, against=DDP)]
        gain = median(within / after for within, after in zip(times[WITHIN], times[AFTER], strict=True))
        noise = spread(times, AGAIN, DDP)
        aims.append(Target(f"{workload.name}: within, ratio to after", gain, at_most=1.0, noise=noise))
    if ranks.rank == 0:
        show(f"milliseconds a step, {ranks.world_size} ranks", rows, options.json, aims)


if __name__ == "__main__":
    steps = {"--steps": {"type": int, "default": 100, "help": "of the model of 1 M (default: 100)"}}
    on_ranks(__doc__, rank_main, steps)
