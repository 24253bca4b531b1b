"""Microseconds per batch of graphtrain and of loops written by hand.

    python tools/benchmarks/loop.py
    python tools/benchmarks/loop.py --peers            # also other frameworks, those that can be imported
    python tools/benchmarks/loop.py --device cuda

Every case trains the same model on the same list of batches for one epoch, in one process on one torch thread, in
rounds of all cases; the garbage collector is on. The clock is in the training step, which all of them call, and
measures from an early batch to the last: creating, starting and ending a run, with the checkpoint at its end, are not
included. On the CPU all must end with the same weights, bit for bit, or the benchmark fails.

* by hand: the usual loop, without logging.
* by hand, parameters once: the same, with the list of parameters for clipping looked up before the loop.
* fit, bare: `fit` with clipping; no run directory, no metrics, no display.
* fit, equipped: with a run directory, the display of a terminal (a pseudo-terminal, which a thread reads), metrics
  every 50 steps, and a checkpoint every 10 minutes, which is not due during the measurement. Nor is the status file,
  which takes half a millisecond every two seconds.
* by hand, again: the same loop again, which shows the noise.

The ratio of the larger models may exceed its target by the noise: the distance from 1 of the ratio of "by hand, again"
to "by hand" within a round, as median or as half its interquartile range, and at least 0.005, since a few rounds may
agree by chance.
"""

from __future__ import annotations

import gc
import os
import pty
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from measure import Target, arguments, comparison, rounds, show, spread
from torch.nn.utils import clip_grad_norm_
from workloads import LARGER, MAX_NORM, TINY, Batch, Training, Workload

from graphtrain import Graph

BY_HAND, ONCE, AGAIN = "by hand", "by hand, parameters once", "by hand, again"
BARE, EQUIPPED = "fit, bare", "fit, equipped"
LEAST_NOISE = 0.005

Loop = Callable[[Training], Any]


def by_hand(training: Training) -> None:
    model, optimizer, training_step = training.model, training.optimizer, training.training_step
    for batch in training.data:
        loss = training_step(model, batch)
        loss.backward()
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


def by_hand_parameters_once(training: Training) -> None:
    model, optimizer, training_step = training.model, training.optimizer, training.training_step
    parameters = list(model.parameters())
    for batch in training.data:
        loss = training_step(model, batch)
        loss.backward()
        clip_grad_norm_(parameters, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


def bare(training: Training) -> None:
    training.trainer(_fit(training).set("log", every="never"), display=None).run()


def equipped(training: Training) -> None:
    graph = _fit(training).set("log", every="50 steps").set("checkpoint", every="10 minutes")
    with tempfile.TemporaryDirectory(prefix="graphtrain-") as run_dir:
        with terminal() as written:
            training.trainer(graph, run_dir=run_dir).run()
        assert sum(written), "the display has drawn nothing"


def _fit(training: Training) -> Graph:
    return Graph.load("fit").set("clip", max_norm=MAX_NORM).set("finish", after=f"{len(training.data)} batches")


@contextmanager
def terminal() -> Iterator[list[int]]:
    """A context in which the standard streams are a pseudo-terminal; yields the number of bytes written to it."""
    reading, writing = pty.openpty()
    written: list[int] = []
    reader = threading.Thread(target=_read_all, args=(reading, written), daemon=True)
    reader.start()
    try:
        with (
            os.fdopen(writing, "w") as stream,
            redirect_stdout(stream),
            redirect_stderr(stream),
            patch.dict(os.environ, TERM="xterm-256color"),
        ):
            yield written
    finally:
        reader.join()
        os.close(reading)


def _read_all(descriptor: int, written: list[int]) -> None:
    with suppress(OSError):  # on Linux, the other side is closed
        while text := os.read(descriptor, 65536):
            written.append(len(text))


class Measured:
    """The cases of one workload: each call trains again and returns microseconds per batch."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self._workload, self._device = workload, device
        self._data: list[Batch] = workload.data(device)
        self._weights: list[torch.Tensor] | None = None

    def __call__(self, name: str, loop: Loop) -> float:
        training = Training(self._workload, self._data, self._device)
        gc.collect()
        loop(training)
        if self._device.type == "cpu":  # other devices may sum in another order
            self._compare(name, [weight.detach() for weight in training.model.parameters()])
        return training.microseconds

    def _compare(self, name: str, weights: list[torch.Tensor]) -> None:
        if self._weights is None:
            self._weights = weights
        same = all(torch.equal(weight, other) for weight, other in zip(weights, self._weights, strict=True))
        assert same, f"{self._workload.name}: the weights trained by {name} differ from those of the others"


def targets(workload: Workload, rows: Sequence[Mapping[str, Any]], noise: float) -> list[Target]:
    """What graphtrain should reach on this workload."""
    by_case = {row["case"]: row for row in rows}
    if workload is TINY:
        return [
            Target(f"{workload.name}: {BARE}, us over by hand", by_case[BARE]["difference"], at_most=3.0),
            Target(f"{workload.name}: {EQUIPPED}, us over by hand", by_case[EQUIPPED]["difference"], at_most=10.0),
        ]
    return [
        Target(f"{workload.name}: {case}, ratio to by hand", by_case[case]["ratio"], at_most=1.0, noise=noise)
        for case in (BARE, EQUIPPED)
    ]


def noise_of(times: Mapping[str, Sequence[float]]) -> float:
    """How far apart the ratios of two equal loops are."""
    ratios = [repeated / first for repeated, first in zip(times[AGAIN], times[BY_HAND], strict=True)]
    return max(spread(times, AGAIN, BY_HAND), abs(statistics.median(ratios) - 1), LEAST_NOISE)


def main() -> None:
    further = {
        "--peers": {"action": "store_true", "help": "measure other frameworks too, those that can be imported"},
        "--device": {"type": torch.device, "default": torch.device("cpu"), "help": "where to train (default: cpu)"},
    }
    given = arguments(__doc__, rounds=17, further=further)
    if given.peers and given.device.type != "cpu":
        sys.exit("the other frameworks are measured on the CPU only")
    torch.set_num_threads(1)
    loops: dict[str, Loop] = {
        BY_HAND: by_hand,
        ONCE: by_hand_parameters_once,
        BARE: bare,
        EQUIPPED: equipped,
        AGAIN: by_hand,
    }
    if given.peers:
        import peers

        others, missing = peers.loops(terminal)
        loops |= others
        for line in missing:
            print(line, file=sys.stderr)  # noqa: T201
    rows: list[dict[str, Any]] = []
    aims: list[Target] = []
    for workload in (TINY, *LARGER):
        measured = Measured(workload, given.device)
        times = rounds({name: partial(measured, name, loop) for name, loop in loops.items()}, given.rounds)
        compared = comparison(times, against=BY_HAND)
        rows += [{"workload": workload.name, **row} for row in compared]
        if given.device.type == "cpu":
            aims += targets(workload, compared, noise_of(times))
    show(f"microseconds a batch on {given.device}", rows, given.json, aims)


if __name__ == "__main__":
    main()
