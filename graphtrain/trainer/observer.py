"""Snapshots of a run, with rates and the time left; memory in use, its growth, and out-of-memory messages."""

from __future__ import annotations

import itertools
import operator
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any, final

import torch

from graphtrain.data.batch import tensors_of
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.program.clock import RunClock
from graphtrain.report.numbers import size
from graphtrain.report.snapshot import Snapshot
from graphtrain.resume.session import Session

# Rates are averaged over this much training; shorter averages jitter, longer ones hide a change.
_RATE_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5
# A rate over less time would be noise.
_LEAST_SECONDS = 0.02

_MOST_SAMPLES = 64
_LEAST_SAMPLES = 16
_LEAST_BATCHES = 1_000
_LEAST_BYTES = 64 << 20
_LEAST_SHARE = 0.05  # of what there was at first
_LEAST_PART = 0.15  # of the growth, in each quarter of the time: a jump is no growth

_MOST_TENSORS = 4
_OF_HOST = ("can't allocate memory", "not enough memory")


@final
class Observer:
    """Makes snapshots of a run."""

    def __init__(self, session: Session) -> None:
        self._session, self._watch = session, session.watch
        self._until = Trigger("never")
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._earlier: float | None = None
        self._started = 0.0
        self._shares_at_start: dict[Term, float] = {}
        self._evaluated_at_start: dict[str, tuple[float, float]] = {}

    @property
    def _run_clock(self) -> RunClock:
        return self._session.compiled.run_clock

    def begin(self, until: Trigger | None) -> None:
        """The run starts, or continues, in this process.

        Arguments:
            until: amounts at which it is to pause.
        """
        self._until = until or Trigger("never")
        self._samples.clear()
        self._rates(self._watch.seconds())
        self._started = self._watch.running()
        self._earlier = self._started if self._earlier is None else self._earlier
        self._shares_at_start = self._shares()
        self._evaluated_at_start = self._evaluated()

    def snapshot(self, state: str, position: str) -> Snapshot:
        """The run as it is now.

        Arguments:
            position: the path to show.
        """
        session, run_clock, seconds = self._session, self._run_clock, self._watch.seconds()
        elapsed = self._watch.running()
        shares = self._shares()
        done, until_done = (
            max((shares[term] for term in terms if term in shares), default=None)
            for terms in (run_clock.ends, self._until.terms)
        )
        steps, epochs, batch = (run_clock.count(unit) for unit in ("steps", "epochs", "epoch_batches"))
        epochs_move = run_clock.epochs_move()
        evaluation = run_clock.evaluation(session.position)
        name, fetched, batches = (
            (evaluation.name, evaluation.batch, evaluation.batches) if evaluation is not None else (None,) * 3
        )
        return Snapshot(
            state=state,
            graph=session.graph.title,
            position=position,
            step=int(steps) if steps is not None else None,
            epoch=float(epochs) if epochs is not None and epochs_move else None,
            clocks=run_clock.outer_counts(),
            end=tuple(map(str, run_clock.shown_ends)),
            done=done,
            until=tuple(map(str, self._until.terms)),
            until_done=until_done,
            batch=int(batch) if batch is not None else None,
            epoch_batches=run_clock.epoch_length() if epochs_move else None,
            evaluation=name,
            evaluation_batch=fetched,
            evaluation_batches=batches,
            window=run_clock.window(),
            metrics=dict(session.recorder.latest),
            metric_steps={name: session.recorder.steps[name] for name in session.recorder.latest},
            rates=self._rates(seconds),
            elapsed_seconds=elapsed,
            earlier_seconds=self._earlier or 0.0,
            seconds_left=self._seconds_left(shares, elapsed - self._started),
            memory_bytes=memory_bytes(session.device),
            device=str(session.device),
            seconds=seconds,
        )

    def _rates(self, seconds: dict[str, float]) -> dict[str, float]:
        """Counts per second of training and fetching its data; evaluating and saving do not count."""
        spent = seconds.get("train", 0.0) + seconds.get("data", 0.0)
        samples, counts = self._samples, self._run_clock.counts()
        before = samples[-1][1] if samples else counts
        if counts.keys() != before.keys() or any(counts[unit] < count for unit, count in before.items()):
            samples.clear()  # another graph trains, or the same one from the start
        if not samples or spent - samples[-1][0] >= _SAMPLE_SECONDS:
            samples.append((spent, counts))
            while len(samples) > 2 and spent - samples[1][0] >= _RATE_SECONDS:
                samples.popleft()
        since, before = samples[0]
        span = spent - since
        if span < _LEAST_SECONDS:
            return {}
        return {unit: (count - before.get(unit, 0)) / span for unit, count in counts.items()}

    def _shares(self) -> dict[Term, float]:
        """The share reached of each amount that ends or pauses the run, if the clock counts it."""
        return {**self._run_clock.ends_done(), **self._run_clock.done(self._until)}

    def _evaluated(self) -> dict[str, tuple[float, float]]:
        """For each evaluation, how often it has run, and its seconds."""
        seconds, runs_of = self._watch.seconds(), self._run_clock.evaluations_run(self._session.position)
        return {name: (runs, seconds.get(name, 0.0)) for name, runs in runs_of.items()}

    def _seconds_left(self, shares: dict[Term, float], elapsed: float) -> float | None:
        """Seconds until the first end, at the average pace since the run was started or continued.

        Evaluations have a separate pace if it is known how many are still to come.
        """
        if elapsed < _SAMPLE_SECONDS:
            return None
        run_clock, at_start, now = self._run_clock, self._evaluated_at_start, self._evaluated()
        recent = {name: tuple(map(operator.sub, now[name], at_start.get(name, (0.0, 0.0)))) for name in now}
        left = []
        for term, share in shares.items():
            before = self._shares_at_start.get(term, share)
            if before >= share:
                continue
            seconds, further = elapsed, (1 - share) / (share - before)
            to_come = 0.0
            for name, (passes, spent) in recent.items():
                total = run_clock.evaluations_planned(name) if passes > 0 and term in run_clock.ends else None
                if total is not None and term.base.unit != "seconds":  # seconds pass in evaluations too
                    seconds -= spent
                    to_come += max(total - now[name][0], 0.0) * spent / passes
            left.append(seconds * further + to_come)
        return min(left, default=None)


# ---- memory


def memory_bytes(device: torch.device) -> int | None:
    """Memory in use: allocated by torch on a CUDA device, resident in this process on a host.

    None if the system does not report it.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None  # not Linux


def _peak_bytes(device: torch.device) -> int | None:
    """The peak of `memory_bytes`; None if the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def out_of_memory_note(error: BaseException, device: torch.device, batch: Any = None) -> str:
    """The peak memory, the batch, and what to do, in words; empty for any other error.

    Arguments:
        batch: the batch of the node that raised it. Default: none.

    >>> error = torch.OutOfMemoryError("CUDA out of memory")
    >>> out_of_memory_note(error, torch.device("cpu"), [torch.zeros(32, 8), "a"])
    'out of memory on cpu: at most ... were in use; the batch has [32, 8] float32. ...'
    >>> out_of_memory_note(ValueError("no label"), torch.device("cpu"))
    ''
    """
    is_of_host = isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_HOST)
    if not (is_of_host or isinstance(error, torch.OutOfMemoryError | MemoryError)):
        return ""
    peak = _peak_bytes(device)
    in_use = f": at most {size(peak)} were in use" if peak is not None else ""
    shapes = [f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors_of(batch)]
    more = f" and {len(shapes) - _MOST_TENSORS} more tensors" if len(shapes) > _MOST_TENSORS else ""
    has = f"; the batch has {', '.join(shapes[:_MOST_TENSORS])}{more}" if shapes else ""
    return (
        f"out of memory on {device}{in_use}{has}. Half the batch size with twice the accumulate.every trains the same; "
        'so does train_batch.on_out_of_memory = "halve", without a restart'
    )


@final
class MemoryTrend:
    """Samples the memory in use, and reports once that it grows.

    >>> trend = MemoryTrend()
    >>> lines = [trend.add(100 * number, (500 << 20) + number * (10 << 20)) for number in range(20)]
    >>> [line for line in lines if line]
    ['memory grows by 100.0 MiB per 1,000 batches, from 500.0 MiB to ... MiB since batch 0: something is kept ...']
    """

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []
        self._is_reported = False

    def add(self, batches: int, memory: int | None) -> str:
        """A message once it is known that memory grows; else empty.

        Arguments:
            batches: how many were trained on so far.
            memory: bytes in use; None if unknown.
        """
        samples = self._samples
        span = samples[-1][0] - samples[0][0] if samples else 0
        least_distance = max(1.0, 2 * span / _MOST_SAMPLES)  # as far apart as those that were kept
        if self._is_reported or memory is None or (samples and batches - samples[-1][0] < least_distance):
            return ""
        samples.append((batches, memory))
        if len(samples) > _MOST_SAMPLES:
            del samples[1::2]
        begin, span = samples[0][0], batches - samples[0][0]
        if len(samples) < _LEAST_SAMPLES or span < _LEAST_BATCHES:
            return ""
        # The least of each quarter of the time: what is freed in between, as after a validation, is no growth.
        quarters: list[list[tuple[int, int]]] = [[], [], [], []]
        for sample in samples:
            quarters[min(3, 4 * (sample[0] - begin) // span)].append(sample)
        if not all(quarters):
            return ""
        least = [min(quarter, key=lambda sample: sample[1]) for quarter in quarters]
        (first, low), (last, high) = least[0], least[-1]
        growth = high - low
        if growth < max(_LEAST_BYTES, _LEAST_SHARE * low):
            return ""
        if any(later[1] - earlier[1] < _LEAST_PART * growth for earlier, later in itertools.pairwise(least)):
            return ""
        self._is_reported = True
        rate = growth / max(last - first, 1) * 1000
        return (
            f"memory grows by {size(rate)} per 1,000 batches, from {size(low)} to {size(high)} since "
            f"batch {first}: something is kept from batch to batch, such as a loss that is not detached"
        )
